"""Builds the Kubernetes objects of gangs: Jobs, bare pods (pods without a Job), and the JSON Patches that start,
ungate, stop and end them.

A Job carries the epoch of the last lease that it was ordered to run; this epoch only grows. Every order is one JSON
Patch that first tests the object's UID and epoch. The API server applies the patch as a whole or not at all. An order
that comes twice, late, or from an outdated process therefore changes nothing and gets HTTP status 422.

This module decides which settings a pod may have. Users only supply the values of the fields of `Pod`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from scheduling.backends import elastic_variables
from scheduling.backends.base import (
    DEFAULT_CONTAINER,
    NO_SECRETS,
    Bounds,
    Container,
    Endpoint,
    Input,
    Mount,
    Secrets,
)
from scheduling.backends.kubernetes import claims, podgroups, probes, rendezvous, secret_objects
from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.namespaces import JOB_ACCOUNT

Operation: TypeAlias = Mapping[str, object]

OURS = "fairlot.io"
NVIDIA = "nvidia.com/gpu"
# Labels: the job's ID, and the installation of Fairlot that the object belongs to.
JOB, OWNER = f"{OURS}/job", probes.OWNER
BARE = f"{OURS}/bare"  # a label of bare pods, which have no Job
# Annotations: the epoch and token of the last lease, the nodes of its ranks, and the reason if Fairlot itself decided
# to stop it.
EPOCH, LEASE, RANKS, BECAUSE = f"{OURS}/epoch", f"{OURS}/lease", f"{OURS}/ranks", f"{OURS}/because"
GENERATION, WORKERS = f"{OURS}/generation", f"{OURS}/workers"
# Of gangs with roles, whose roles are parts with a Job each. A label with the part's number. Annotations with the
# number of parts, the part's role, whether it ends the gang, the rank of its first worker, that of the leader, and the
# number of workers of all parts.
PART = f"{OURS}/part"
PARTS, ROLE, ENDS, FIRST, LEADER, WORLD = (
    f"{OURS}/{name}" for name in ("parts", "role", "ends", "first-rank", "leader", "world")
)
# An annotation of an ungated pod: a hash of the pods that were ungated together.
MEMBERS = f"{OURS}/members"
# An annotation with the pattern of progress lines, for watching processes that did not see the submission.
PROGRESS = f"{OURS}/progress"
LONGEST_PATTERN = 500
GATE = f"{OURS}/placement"
CONTROLLER = "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
HOSTNAME = "kubernetes.io/hostname"
# Keys of taints that Fairlot's pods tolerate: of nodes reserved for GPUs, and of nodes reserved for Fairlot.
TOLERATED = frozenset({NVIDIA, f"{OURS}/gpus"})
TEMPLATE = "/spec/template/spec"
ANNOTATIONS = "/metadata/annotations"
PATIENCE_SECONDS = 300
# The UID of pods for which the job sets none.
USER = 1000
# An ended Job is kept for this long, so that no late request can create it again.
TOMBSTONE_SECONDS = 24 * 3600
# Folders in a worker: CHECKPOINTS survives its attempts, and SHARED_MEMORY is shared by its processes.
INPUTS = "/inputs"  # below it, a folder for each earlier job whose files the pod may read
CHECKPOINTS, SHARED_MEMORY = "/checkpoint", "/dev/shm"  # noqa: S108
RANK = "FAIRLOT_RANK"
RESUME = "resume"  # name of the init container that names the checkpoint from which the attempt resumes
# The activeDeadlineSeconds of a pod that must end: the smallest allowed value, which no other client would set.
OVER = 1


# The rank of a worker that is not in its gang's first part. Annotations of pods only have its number in the role.
NUMBER = """
FAIRLOT_RANK=$((FAIRLOT_FIRST_RANK + FAIRLOT_ROLE_INDEX))
export FAIRLOT_RANK
[ -z "$FAIRLOT_TRAINS" ] || export RANK="$FAIRLOT_RANK" PET_NODE_RANK="$FAIRLOT_RANK"
exec "$@"
"""
# Of pods without GPUs on nodes with GPUs: most images with CUDA ask the runtime for all GPUs.
NO_GPUS = {
    "CUDA_VISIBLE_DEVICES": "",
    **{f"{kind}_VISIBLE_DEVICES": "void" for kind in ("NVIDIA", "AMD", "ASCEND", "HABANA")},
}


@dataclass(frozen=True, slots=True)
class Part:
    """The workers of one role in a gang with roles. Each part has its own Job."""

    number: int
    of: int  # the number of parts
    role: str
    ends_gang: bool
    first_rank: int
    leader: int  # the rank of the gang's worker whose progress and port count
    trains: bool  # whether the workers have the variable RANK
    variables: Mapping[str, str]  # the same for all workers of the part
    hosts: str  # the list of the gang's hosts
    world: int  # the number of workers of all parts


@dataclass(frozen=True, slots=True)
class Pod:
    """The settings that all workers of a gang have in common."""

    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    gpus: int
    gpu_resource: str = NVIDIA
    grace_seconds: float = 30.0
    account: str = JOB_ACCOUNT
    progress_pattern: str = ""  # RE2; its first group matches the number of steps
    # A PersistentVolumeClaim in the tenant's namespace with one folder per job; empty: no checkpoint survives an
    # attempt.
    checkpoint_claim: str = ""
    # Seconds after which the pods of a silent node count as lost, and the gang starts again elsewhere.
    patience_seconds: int = PATIENCE_SECONDS
    endpoint: Endpoint | None = None  # port of the first worker
    secrets: Secrets = NO_SECRETS
    mounts: Sequence[Mount] = ()
    inputs: Sequence[Input] = ()
    container: Container = DEFAULT_CONTAINER
    part: Part | None = None  # None: the gang has no roles
    bounds: Bounds | None = None  # None: the gang has a fixed number of workers
    resume_report: Sequence[str] = ()  # command of the init container RESUME; empty: no such container


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt (lease) of a job, with the name of the node for each rank."""

    epoch: int
    token: str
    generation: str
    nodes: Sequence[str]  # by rank
    may_have_begun: bool = False  # an earlier order to start this epoch had an unknown outcome


def job_name(job_id: int, part: int = 0) -> str:
    """Returns the name of the Kubernetes Job for a job. The name is short, because pod names append suffixes to it.

    The name is the same for all attempts, so that the API server refuses a second Job for the same job. Each further
    `part` of a gang with roles has its own Job.
    """
    number = base64.b32encode(job_id.to_bytes(5, "big")).decode().lower()
    return f"fairlot-{number}" + (f"r{part}" if part else "")


def pod_name(job_id: int) -> str:
    """Returns the name of a job's bare pod. All attempts use the same name, so that two of a job's pods never
    coexist."""
    return f"{job_name(job_id)}-0"


def new_job(
    job_id: int,
    pod: Pod,
    *,
    workers: int,
    owner: str,
    epoch: int = 0,
    begin: Attempt | None = None,
    grouped: bool = False,
) -> Object:
    """Returns a new Job with one pod per worker. In gangs of several workers, each pod has a scheduling gate.

    - `owner`: identifies this installation of Fairlot in the Job's labels.
    - `epoch`: the number of the last attempt that may have run in an earlier Job; 0 if there is none. The new Job
      refuses orders for attempts up to this number.
    - `begin`: the attempt that the Job starts. If None, the Job is suspended.
    - `grouped`: whether the pods refer to a PodGroup.
    """
    name = job_name(job_id, pod.part.number if pod.part else 0)
    of_part = _annotations_of_part(pod)
    annotations = (
        of_part | {EPOCH: str(epoch)} | _fixed_annotations(pod, workers) | (_marks(begin) if begin else {})
    )
    labels = _labels(job_id, pod, owner)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "suspend": begin is None,
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            # Without this, two pods of one index could run at once: a terminating pod and its replacement.
            "podReplacementPolicy": "Failed",
            # A pod that is lost with its node does not count as a failure. A worker that fails ends the gang.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "backoffLimit": 0,
            # A part that has ended still counts as long as its gang runs.
            **({} if pod.part else {"ttlSecondsAfterFinished": TOMBSTONE_SECONDS}),
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": of_part
                    | (_marks_of_pods(begin) if begin else {EPOCH: str(epoch), GENERATION: ""}),
                },
                "spec": _pod_spec(job_id, pod, workers)
                | ({"affinity": _node_affinity(begin.nodes)} if begin else {})
                | (podgroups.of_pods(podgroups.name_of(name, epoch)) if grouped else {}),
            },
        },
    }


def new_pod(job_id: int, pod: Pod, *, owner: str, attempt: Attempt) -> Object:
    """Returns the bare pod of a job for one attempt. It has the labels and annotations that a Job would have.

    `owner` identifies this installation of Fairlot in the labels.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job_id),
            "labels": _labels(job_id, pod, owner) | {BARE: "true"},
            "annotations": {INDEX: "0", GENERATION: attempt.generation}
            | _fixed_annotations(pod, 1)
            | _marks(attempt),
        },
        "spec": _pod_spec(job_id, pod, 1) | {"affinity": _node_affinity(attempt.nodes)},
    }


def _labels(job_id: int, pod: Pod, owner: str) -> dict[str, str]:
    ours = {"app.kubernetes.io/managed-by": "fairlot", JOB: str(job_id), OWNER: owner}
    return ours | ({PART: str(pod.part.number)} if pod.part else {}) | probes.labels(pod.endpoint)


def _annotations_of_part(pod: Pod) -> dict[str, str]:
    """Returns the annotations of a Job and its pods that say which part of its gang they are."""
    if pod.part is None:
        return {}
    part = pod.part
    return {
        PARTS: str(part.of),
        ROLE: part.role,
        ENDS: "true" if part.ends_gang else "",
        FIRST: str(part.first_rank),
        LEADER: str(part.leader),
        WORLD: str(part.world),
    }


def _fixed_annotations(pod: Pod, workers: int) -> dict[str, str]:
    """Returns the annotations that are the same for all attempts: the number of workers and the progress pattern."""
    fits = 0 < len(pod.progress_pattern) <= LONGEST_PATTERN
    return {WORKERS: str(workers)} | ({PROGRESS: pod.progress_pattern} if fits else {})


def _pod_spec(job_id: int, pod: Pod, workers: int) -> Object:
    """Returns a pod spec that meets Kubernetes' restricted Pod Security Standard. The pod gets no access to the
    Kubernetes API.

    `workers` is the gang's number of workers.
    """
    volumes = _volumes(job_id, pod, workers)
    name = job_name(job_id, pod.part.number if pod.part else 0)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": pod.account,
        "tolerations": _tolerations(pod),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, round(pod.grace_seconds))
        + probes.pre_stop_seconds(pod.endpoint),
        "subdomain": name,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pod.container.user_id or USER,
            "runAsGroup": pod.container.group_id or USER,
            "fsGroup": pod.container.group_id or USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "schedulingGates": [{"name": GATE}] if workers > 1 or pod.part else [],
        **({"initContainers": [_resume_container(job_id, pod)]} if pod.resume_report else {}),
        "containers": [
            {
                **_container("main", pod, _command(pod), gpus=pod.gpus),
                "env": _environment(job_id, pod, workers),
                "volumeMounts": [*(mount for mount, _ in volumes), *_inputs(pod)],
                **probes.of_container(pod.endpoint),
            }
        ],
        "volumes": [volume for _, volume in volumes],
        **secret_objects.pulling(name, pod.secrets),
    }


def _container(name: str, pod: Pod, command: Sequence[str], *, gpus: int) -> Object:
    """Returns the fields that all containers of the pod have."""
    return {
        "name": name,
        "image": pod.image,
        "command": [escape_dollars(part) for part in command],
        "resources": _resources(pod, gpus),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **_container_settings(pod.container),
    }


def _resume_container(job_id: int, pod: Pod) -> Object:
    """Returns the init container that reports from which checkpoint the attempt resumes. It only sees checkpoints."""
    return {
        **_container(RESUME, pod, pod.resume_report, gpus=0),
        "env": _entries({"FAIRLOT_CHECKPOINT_DIR": CHECKPOINTS, **NO_GPUS}),
        "volumeMounts": [_checkpoints(job_id, pod)[0] | {"readOnly": True}],
    }


def _command(pod: Pod) -> Sequence[str]:
    later = pod.part is not None and pod.part.first_rank > 0
    return ["/bin/sh", "-c", NUMBER, "fairlot", *pod.command] if later else pod.command


def escape_dollars(text: str) -> str:
    """Escapes dollar signs, because Kubernetes would otherwise expand $(NAME) in commands and environment variables."""
    return text.replace("$", "$$")


def _resources(pod: Pod, gpus: int) -> Object:
    """Returns a container's resource limits and requests. Requests equal limits, so that no pod uses resources that
    another pod requested."""
    limits = {pod.gpu_resource: str(gpus)} if gpus else {}
    if pod.container.cpus is not None:
        limits["cpu"] = f"{round(pod.container.cpus * 1000)}m"
    if pod.container.memory is not None:
        limits["memory"] = str(pod.container.memory)
    return (
        {"limits": limits, "requests": limits} if limits.keys() - {pod.gpu_resource} else {"limits": limits}
    )


def _container_settings(container: Container) -> Object:
    said = {"workingDir": container.working_directory, "imagePullPolicy": container.image_pull_policy}
    return {key: value for key, value in said.items() if value}


def _tolerations(pod: Pod) -> list[Object]:
    found: list[Object] = [{"key": key, "operator": "Exists"} for key in sorted(TOLERATED)]
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        bounded = {"effect": "NoExecute", "tolerationSeconds": pod.patience_seconds}
        found.append({"key": key, "operator": "Exists", **bounded})
    return found


def _volumes(job_id: int, pod: Pod, workers: int) -> list[tuple[Object, Object]]:
    """Returns a pair for each mount: the entry for the container's `volumeMounts` and the entry for the pod's
    `volumes`."""
    shared = {"name": "shared-memory", "mountPath": SHARED_MEMORY}
    found: list[tuple[Object, Object]] = [
        # The default of 64 MiB is too little for programs that load data in many processes.
        (shared, {"name": "shared-memory", "emptyDir": _in_memory(pod.container)})
    ]
    found.append(_checkpoints(job_id, pod))
    name = job_name(job_id, pod.part.number if pod.part else 0)
    if workers > 1 or pod.part:
        found.append((rendezvous.mount(), rendezvous.volume(name)))
    return found + secret_objects.folders(name, pod.secrets) + claims.volumes(pod.mounts)


def _checkpoints(job_id: int, pod: Pod) -> tuple[Object, Object]:
    """Returns the entries for `volumeMounts` and `volumes` of the folder of the job's checkpoints."""
    kept: Object = {"name": "checkpoint", "mountPath": CHECKPOINTS}
    if pod.checkpoint_claim:
        kept["subPath"] = job_name(job_id)
        source: Object = {"persistentVolumeClaim": {"claimName": pod.checkpoint_claim}}
    else:
        source = {"emptyDir": {}}
    return kept, {"name": "checkpoint", **source}


def _inputs(pod: Pod) -> list[Object]:
    """Returns the entries for `volumeMounts` that show the checkpoints of earlier jobs.

    They use the volume of the pod's own checkpoints, because a pod with two volumes for one claim may never start.
    """
    return [
        {
            "name": "checkpoint",
            "mountPath": f"{INPUTS}/{one.name}/checkpoint",
            "subPath": job_name(one.job_id),
            "readOnly": True,
        }
        for one in pod.inputs
    ]


def _in_memory(container: Container) -> Object:
    size = container.shared_memory
    return {"medium": "Memory"} | ({} if size is None else {"sizeLimit": str(size)})


def _environment(job_id: int, pod: Pod, workers: int) -> list[Object]:
    """Returns the container's `env` entries: the user's variables, and Fairlot's variables such as rank and world size.

    A user's variable replaces Fairlot's value only for PYTHONUNBUFFERED and LOGNAME.
    """
    usual = {
        "PYTHONUNBUFFERED": "1",  # so that programs print their logs without delay
        # Few images have an account for the UID, but programs such as PyTorch before 2.13 ask for the user's name.
        "LOGNAME": f"uid{pod.container.user_id or USER}",
    }
    part, name = pod.part, job_name(job_id, pod.part.number if pod.part else 0)
    meets = dict(part.variables) if part else rendezvous.variables(name, workers=workers, gpus=pod.gpus)
    if pod.bounds:
        meets |= elastic_variables.of_bounds(pod.bounds.least, pod.bounds.most)
        if part:
            meets |= elastic_variables.host_discovery(rendezvous.HOSTFILE_PATH)
        else:
            meets |= elastic_variables.of_torchrun(
                least=pod.bounds.least, job_id=job_id, workers=workers, gpus=pod.gpus
            )
            meets |= elastic_variables.endpoint(meets["MASTER_ADDR"], meets["MASTER_PORT"])
    ours = {
        "FAIRLOT_JOB_ID": str(job_id),
        "FAIRLOT_CHECKPOINT_DIR": CHECKPOINTS,
        **{name: pod.environment.get(name, value) for name, value in usual.items()},
        **meets,
        **({} if pod.gpus else NO_GPUS),
        **probes.variables(pod.endpoint),
        **secret_objects.plain_variables(pod.secrets),
        **claims.variables(pod.mounts),
        **{one.variable: f"{INPUTS}/{one.name}" for one in pod.inputs},
    }
    from_annotations = {
        **_ranks(part),
        "FAIRLOT_EPOCH": EPOCH,
        "FAIRLOT_GENERATION": GENERATION,
    }
    by_attempt: list[Object] = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for variable, annotation in from_annotations.items()
    ]
    taken = {*from_annotations, *ours}
    free = {key: value for key, value in pod.environment.items() if key not in taken}
    plain = _entries(free | ours)
    if part and "TF_CONFIG" in part.variables:
        plain = [one for one in plain if one["name"] != "TF_CONFIG"]
        said = pod.environment.get("TF_CONFIG")
        # Kubernetes puts the number of the worker in, which is the same in the pod template for all workers.
        value = part.variables["TF_CONFIG"] if said is None else escape_dollars(said)
        plain.append({"name": "TF_CONFIG", "value": value})
    hidden = secret_objects.variables(name, pod.secrets)
    return by_attempt + plain + [one for one in hidden if one["name"] not in taken]


def _entries(variables: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "value": escape_dollars(value)} for name, value in variables.items()]


def _ranks(part: Part | None) -> dict[str, str]:
    """Returns the variables that have the worker's number, which is an annotation of its pod, as their value.

    In other parts of a gang than the first, NUMBER sets the variables that count all workers.
    """
    if part is None:
        return {RANK: INDEX, "RANK": INDEX, "PET_NODE_RANK": INDEX}
    if part.first_rank:
        return {"FAIRLOT_ROLE_INDEX": INDEX}
    trains = {"RANK": INDEX, "PET_NODE_RANK": INDEX} if part.trains else {}
    return {"FAIRLOT_ROLE_INDEX": INDEX, RANK: INDEX} | trains


# --- patches of existing objects -------------------------------------------------------------------------


def start(uid: str, *, at: int, attempt: Attempt) -> list[Operation]:
    """Returns a patch that starts `attempt` in the suspended Job with UID `uid`. The patch fails if the Job's epoch is
    not `at`.

    If the attempt has several workers, their pods keep their scheduling gates until `ungate`.
    """
    return [
        *_fence(uid, at),
        {"op": "test", "path": "/spec/suspend", "value": True},
        *_puts(ANNOTATIONS, _marks(attempt)),
        *_puts("/spec/template/metadata/annotations", _marks_of_pods(attempt)),
        {"op": "add", "path": f"{TEMPLATE}/affinity", "value": _node_affinity(attempt.nodes)},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]


def stop(uid: str, *, at: int, epoch: int, token: str, because: str = "") -> list[Operation]:
    """Returns a patch that suspends the Job with UID `uid` and sets its epoch to `epoch`. The patch fails if the Job's
    epoch is not `at`.

    `epoch` and `token` identify the lease to stop. After the patch, a late order to start this lease has no effect.
    `because` says why the backend itself stops the lease; "" if the scheduler ordered it.
    """
    return [
        *_fence(uid, at),
        *_puts(ANNOTATIONS, _marks_of_lease(epoch, token, because)),
        {"op": "replace", "path": "/spec/suspend", "value": True},
    ]


def end(uid: str, *, at: int, because: str = "") -> list[Operation]:
    """Returns a patch that makes the kubelet end the running bare pod with UID `uid`. The pod object stays. The patch
    fails if the pod's epoch is not `at`.

    The pod gets its grace period. It then has the phase Failed and the reason DeadlineExceeded, even if its program
    exited with 0.

    `because` says why the backend itself stops the lease; "" if the scheduler ordered it.
    """
    return [
        *_fence(uid, at),
        {"op": "test", "path": "/status/phase", "value": "Running"},
        *_puts(ANNOTATIONS, {BECAUSE: because}),
        # A deadline that has already passed. A kubelet that is pulling an image reacts only after the pull.
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": OVER},
    ]


def note_reason(uid: str, *, at: int, because: str) -> list[Operation]:
    """Returns a patch that stores `because`, the reason why the backend is about to delete a bare pod, in the pod's
    annotations.

    The patch fails if the pod's UID is not `uid` or its epoch is not `at`.
    """
    return [*_fence(uid, at), *_puts(ANNOTATIONS, {BECAUSE: because})]


def ungate(uid: str, *, node: str, members: str) -> list[Operation]:
    """Returns a patch that removes the scheduling gate of the pod with UID `uid` and binds the pod to `node`.

    The patch also records `members`, the hash of the gang's pods (see `members_of`), in an annotation. A repeated patch
    changes nothing, because the patch first tests that the gate exists.
    """
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        *_puts(ANNOTATIONS, {MEMBERS: members}),
        {"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: node}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]


def _fence(uid: str, epoch: int) -> list[Operation]:
    """Returns operations for the beginning of a patch. They make the patch fail if the object has another UID or
    epoch."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"{ANNOTATIONS}/{_escaped(EPOCH)}", "value": str(epoch)},
    ]


def _marks(attempt: Attempt) -> dict[str, str]:
    return _marks_of_lease(attempt.epoch, attempt.token, "") | {RANKS: json.dumps(list(attempt.nodes))}


def _marks_of_lease(epoch: int, token: str, because: str) -> dict[str, str]:
    return {EPOCH: str(epoch), LEASE: token, BECAUSE: because}


def _marks_of_pods(attempt: Attempt) -> dict[str, str]:
    return {EPOCH: str(attempt.epoch), LEASE: attempt.token, GENERATION: attempt.generation}


def _puts(path: str, annotations: Mapping[str, str]) -> list[Operation]:
    return [
        {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value} for key, value in annotations.items()
    ]


def _node_affinity(nodes: Sequence[str]) -> Object:
    among = {"key": HOSTNAME, "operator": "In", "values": sorted(set(nodes))}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [among]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _escaped(key: str) -> str:
    """Escapes a key for use in a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


# --- reading Jobs and pods --------------------------------------------------------------------------------


def members_of(pods: Sequence[Object]) -> str:
    """Returns a hash that identifies this set of pods by their UIDs, in any order."""
    uids = sorted(str(pod["metadata"]["uid"]) for pod in pods)
    return hashlib.sha256(" ".join(uids).encode()).hexdigest()[:16]


def epoch_of(thing: Object) -> int:
    """Returns the epoch from the annotation of one of Fairlot's Jobs or pods."""
    return int(thing["metadata"]["annotations"][EPOCH])


def is_bare(thing: Object) -> bool:
    """Returns whether `thing` is a bare pod, that is, a pod without a Job.

    Most functions here that take a Job also accept a bare pod.
    """
    return BARE in thing["metadata"]["labels"]


def is_ordered_to_end(pod: Object) -> bool:
    """Returns whether the pod was ordered to end, by Fairlot or by someone else. The pod may have ended since."""
    return "deletionTimestamp" in pod["metadata"] or pod["spec"].get("activeDeadlineSeconds") == OVER


def has_started(pod: Object) -> bool:
    """Returns whether the pod's program runs or has run."""
    found = pod.get("status", {}).get("containerStatuses", ())
    return any({"running", "terminated"} & status.get("state", {}).keys() for status in found)


def is_of(pod: Object, job: Object) -> bool:
    """Returns whether `job` created the pod. Returns False if an earlier Job of the same name did.

    For a bare pod, `job` is a pod object. The result then says whether both are the same pod.
    """
    maker = pod["metadata"]["uid"] if is_bare(pod) else pod["metadata"]["labels"][CONTROLLER]
    return str(maker) == str(job["metadata"]["uid"])


def of_attempt(job: Object, pods: Sequence[Object]) -> list[Object]:
    """Returns the pods in `pods` that belong to the Job's current attempt.

    Leaves out pods that an earlier Job of the same name created.
    """
    return [pod for pod in pods if epoch_of(pod) == epoch_of(job) and is_of(pod, job)]


def job_id_of(thing: Object) -> int:
    """Returns the job ID of one of Fairlot's Jobs or pods."""
    return int(thing["metadata"]["labels"][JOB])


def rank_of(pod: Object) -> int:
    """Returns the number of a pod's worker among all workers of its gang."""
    annotations = pod["metadata"]["annotations"]
    return int(annotations[INDEX]) + int(annotations.get(FIRST, 0))


def index_of(pod: Object) -> int:
    """Returns the number of a pod's worker among those of its Job."""
    return int(pod["metadata"]["annotations"][INDEX])


def is_leader(pod: Object) -> bool:
    """Returns whether the progress and the port of the pod's worker count for its gang."""
    return rank_of(pod) == int(pod["metadata"]["annotations"].get(LEADER, 0))


def part_of(thing: Object) -> int:
    """Returns to which part of its gang a Job or a pod belongs; 0 if the gang has no roles."""
    return int(thing["metadata"]["labels"].get(PART, 0))


def parts_of(thing: Object) -> int:
    """Returns how many parts the gang of a Job or a pod has; 0 if it has no roles."""
    return int(thing["metadata"]["annotations"].get(PARTS, 0))


def role_of(thing: Object) -> str:
    return str(thing["metadata"]["annotations"].get(ROLE, ""))


def ends_gang(job: Object) -> bool:
    """Returns whether the gang ends when all workers of this Job have succeeded."""
    return bool(job["metadata"]["annotations"].get(ENDS))


def leader_of(job: Object) -> int:
    return int(job["metadata"]["annotations"].get(LEADER, 0))


def first_rank_of(job: Object) -> int:
    return int(job["metadata"]["annotations"].get(FIRST, 0))


def began(job: Object) -> datetime | None:
    """Returns the time at which the current attempt began, in whole seconds; None if it has not begun.

    For a bare pod this is the pod's creation time, because each attempt has a new pod.
    """
    began_at = (
        job["metadata"]["creationTimestamp"] if is_bare(job) else job.get("status", {}).get("startTime")
    )
    return datetime.fromisoformat(began_at) if began_at else None


def workers_of(job: Object) -> int:
    return int(job["metadata"]["annotations"][WORKERS])


def is_of_size(job: Object, pod: Pod, workers: int) -> bool:
    """Returns whether the Job was created for `workers` workers, and its gang for as many as that of `pod`."""
    world = job["metadata"]["annotations"].get(WORLD)  # missing in Jobs of earlier releases
    return workers_of(job) == workers and (pod.part is None or world in {None, str(pod.part.world)})


def progress_pattern_of(job: Object) -> str:
    """Returns the regular expression that finds progress in the job's output; "" if the job has none."""
    return str(job["metadata"]["annotations"].get(PROGRESS, ""))


def nodes_of(job: Object) -> list[str]:
    """Returns the names of the current attempt's nodes, in the order of ranks."""
    nodes: list[str] = json.loads(job["metadata"]["annotations"][RANKS])
    return nodes


def has_begun(job: Object) -> bool:
    """Returns whether this Job has had an attempt. Attempts of an earlier Job of the same name do not count."""
    return LEASE in job["metadata"]["annotations"]


def has_counted_ends(job: Object) -> bool:
    """Returns whether the Job's status counts workers as succeeded or failed.

    Kubernetes cannot undo such counts, so a Job that has them cannot run another attempt.
    """
    status = job.get("status", {})
    being_counted = any(status.get("uncountedTerminatedPods", {}).values())
    counted = status.get("succeeded") or status.get("failed") or status.get("completedIndexes")
    return bool(counted or being_counted)


def is_suspended(job: Object) -> bool:
    """Returns whether the Job was ordered to suspend. Its pods may still run."""
    return bool(job["spec"].get("suspend"))


def is_gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))


def has_ended(pod: Object) -> bool:
    """Returns whether the pod has the phase Succeeded or Failed. All containers have then ended, and its GPUs are
    free."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def holds_gpus(job: Object) -> bool:
    """Returns whether the Job still has pods that are active or terminating. These pods hold GPUs."""
    status = job.get("status", {})
    return bool(status.get("active", 0) or status.get("terminating", 0))


def is_at_rest(thing: Object) -> bool:
    """Returns whether a Job or bare pod has no running pods and will not start any without another order."""
    return has_ended(thing) if is_bare(thing) else is_suspended(thing) and not holds_gpus(thing)


def condition(thing: Object, kind: str) -> Object | None:
    """Returns the condition of type `kind` if its status is True, otherwise None."""
    for found in thing.get("status", {}).get("conditions", ()):
        if found["type"] == kind and found["status"] == "True":
            return dict(found)
    return None
