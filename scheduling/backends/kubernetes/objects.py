"""A gang as a Job of Kubernetes, or one worker as a pod, and the requests that start, let through, stop and move it.

A Job carries the epoch of the lease that it last heard of, and that only grows. Every request is one
JSON-Patch that begins with tests of the Job's uid and of the epoch that it was found at: the API server
takes all of it or nothing, so a request that comes twice, late, or from a worker that was overtaken has
no effect (it is answered with 422). What a pod may be is decided here; users fill in what `Pod` holds.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from scheduling.backends.base import NO_SECRETS, USUAL, Container, Endpoint, Mount, Secrets
from scheduling.backends.kubernetes import claims, podgroups, probes, rendezvous, secret_objects
from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.namespaces import JOB_ACCOUNT

Operation: TypeAlias = Mapping[str, object]

OURS = "fairlot.io"
NVIDIA = "nvidia.com/gpu"
# Labels: of which job of Fairlot it is, and of which Fairlot.
JOB, OWNER = f"{OURS}/job", probes.OWNER
BARE = f"{OURS}/bare"  # a label of pods that no Job has made
# Annotations: the lease that it last heard of, where its ranks go, and why it was stopped if not as decided.
EPOCH, LEASE, RANKS, BECAUSE = f"{OURS}/epoch", f"{OURS}/lease", f"{OURS}/ranks", f"{OURS}/because"
GENERATION, WORKERS = f"{OURS}/generation", f"{OURS}/workers"
# Of a pod that was let through: which pods were, together with it.
MEMBERS = f"{OURS}/members"
# How lines of the program tell its progress, for a watcher that was not there when it was submitted.
PROGRESS = f"{OURS}/progress"
LONGEST_PATTERN = 500
GATE = f"{OURS}/placement"
CONTROLLER = "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
HOSTNAME = "kubernetes.io/hostname"
# Taints that our pods tolerate: of nodes that are kept for GPUs, and for Fairlot.
TOLERATED = frozenset({NVIDIA, f"{OURS}/gpus"})
TEMPLATE = "/spec/template/spec"
ANNOTATIONS = "/metadata/annotations"
PATIENCE_SECONDS = 300
# Whom an image runs as when it says nothing, or says root.
USER = 1000
# A finished Job stays as a tombstone, so that no late request can make it anew.
TOMBSTONE_SECONDS = 24 * 3600
# Where a worker keeps what outlasts its turns, and what is shared between its processes.
CHECKPOINTS, SHARED_MEMORY = "/checkpoint", "/dev/shm"  # noqa: S108
RANK = "FAIRLOT_RANK"
# Seconds that a pod may run which is to end: the least that there is, and what no one else would ask for.
OVER = 1


@dataclass(frozen=True, slots=True)
class Pod:
    """What each worker of a gang is to be."""

    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    gpus: int
    gpu_resource: str = NVIDIA
    grace_seconds: float = 30.0
    account: str = JOB_ACCOUNT
    progress_pattern: str = ""  # RE2; its first group is a number
    # A claim in the tenant's namespace, in which each job has a folder; empty: nothing outlasts a turn.
    checkpoint_claim: str = ""
    # A node that does not answer for so long has lost its pods: the gang goes on elsewhere.
    patience_seconds: int = PATIENCE_SECONDS
    endpoint: Endpoint | None = None  # where its first worker answers
    secrets: Secrets = NO_SECRETS
    mounts: Sequence[Mount] = ()
    container: Container = USUAL


@dataclass(frozen=True, slots=True)
class Turn:
    """One lease of a job."""

    epoch: int
    token: str
    generation: str
    nodes: Sequence[str]  # of each rank
    may_have_begun: bool = False  # the order was given before, and what became of it is not known


def job_name(job_id: int) -> str:
    """Always the same for a job, so that making its Job twice is refused; short enough for its pods' names."""
    number = base64.b32encode(job_id.to_bytes(5, "big")).decode().lower()
    return f"fairlot-{number}"


def pod_name(job_id: int) -> str:
    """Of a worker without a Job. The same for all turns, so that no two of them can ever be there at once."""
    return f"{job_name(job_id)}-0"


def new_job(
    job_id: int,
    pod: Pod,
    *,
    workers: int,
    owner: str,
    epoch: int = 0,
    begin: Turn | None = None,
    grouped: bool = False,
) -> Object:
    """A Job with its pods behind a gate if it is a gang; suspended, or as `start` leaves it for the turn `begin`.

    Turns up to `epoch` are void: they were those of a Job before it. `grouped`: its pods name a PodGroup.
    """
    name = job_name(job_id)
    annotations = {EPOCH: str(epoch)} | _facts(pod, workers) | (_marks(begin) if begin else {})
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
            # Else two pods of one index could run, when one is told to go and its successor is there.
            "podReplacementPolicy": "Failed",
            # Losing a pod to its node is no failure of the program; a failed worker fails the gang.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": TOMBSTONE_SECONDS,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": _marks_of_pods(begin) if begin else {EPOCH: str(epoch), GENERATION: ""},
                },
                "spec": _pod_spec(job_id, pod, workers)
                | ({"affinity": _on(begin.nodes)} if begin else {})
                | (podgroups.of_pods(podgroups.name_of(name, epoch)) if grouped else {}),
            },
        },
    }


def new_pod(job_id: int, pod: Pod, *, owner: str, turn: Turn) -> Object:
    """A job's one worker for one turn, without a Job over it: it says by itself what else a Job would."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job_id),
            "labels": _labels(job_id, pod, owner) | {BARE: "true"},
            "annotations": {INDEX: "0", GENERATION: turn.generation} | _facts(pod, 1) | _marks(turn),
        },
        "spec": _pod_spec(job_id, pod, 1) | {"affinity": _on(turn.nodes)},
    }


def _labels(job_id: int, pod: Pod, owner: str) -> dict[str, str]:
    ours = {"app.kubernetes.io/managed-by": "fairlot", JOB: str(job_id), OWNER: owner}
    return ours | probes.labels(pod.endpoint)


def _facts(pod: Pod, workers: int) -> dict[str, str]:
    """Annotations that are the same for all turns."""
    told = 0 < len(pod.progress_pattern) <= LONGEST_PATTERN
    return {WORKERS: str(workers)} | ({PROGRESS: pod.progress_pattern} if told else {})


def _pod_spec(job_id: int, pod: Pod, workers: int) -> Object:
    """As Kubernetes' restricted standard wants it, without rights and without the cluster's own addresses."""
    volumes = _volumes(job_id, pod, workers)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": pod.account,
        "tolerations": _tolerations(pod),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, round(pod.grace_seconds)) + probes.goodbye(pod.endpoint),
        "subdomain": job_name(job_id),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pod.container.user_id or USER,
            "runAsGroup": pod.container.group_id or USER,
            "fsGroup": pod.container.group_id or USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "schedulingGates": [{"name": GATE}] if workers > 1 else [],
        "containers": [
            {
                "name": "main",
                "image": pod.image,
                "command": [_as_written(part) for part in pod.command],
                "env": _environment(job_id, pod, workers),
                "volumeMounts": [mount for mount, _ in volumes],
                "resources": _resources(pod),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                **_how_to_run(pod.container),
                **probes.of_container(pod.endpoint),
            }
        ],
        "volumes": [volume for _, volume in volumes],
        **secret_objects.pulling(job_name(job_id), pod.secrets),
    }


def _as_written(text: str) -> str:
    """Of a container's command or variables: dollar signs would be taken for references to variables."""
    return text.replace("$", "$$")


def _resources(pod: Pod) -> Object:
    """Promised is what it gets at most: so no pod takes from another what that counts on."""
    limits = {pod.gpu_resource: str(pod.gpus)}
    if pod.container.cpus is not None:
        limits["cpu"] = f"{round(pod.container.cpus * 1000)}m"
    if pod.container.memory is not None:
        limits["memory"] = str(pod.container.memory)
    return {"limits": limits, "requests": limits} if len(limits) > 1 else {"limits": limits}


def _how_to_run(container: Container) -> Object:
    said = {"workingDir": container.working_directory, "imagePullPolicy": container.image_pull_policy}
    return {key: value for key, value in said.items() if value}


def _tolerations(pod: Pod) -> list[Object]:
    found: list[Object] = [{"key": key, "operator": "Exists"} for key in sorted(TOLERATED)]
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        bounded = {"effect": "NoExecute", "tolerationSeconds": pod.patience_seconds}
        found.append({"key": key, "operator": "Exists", **bounded})
    return found


def _volumes(job_id: int, pod: Pod, workers: int) -> list[tuple[Object, Object]]:
    """What is mounted, and what of."""
    shared = {"name": "shared-memory", "mountPath": SHARED_MEMORY}
    found: list[tuple[Object, Object]] = [
        # Containers get 64 MiB of it else, which is too little for what loads data in many processes.
        (shared, {"name": "shared-memory", "emptyDir": _in_memory(pod.container)})
    ]
    kept: Object = {"name": "checkpoint", "mountPath": CHECKPOINTS}
    if pod.checkpoint_claim:
        kept["subPath"] = job_name(job_id)
        source: Object = {"persistentVolumeClaim": {"claimName": pod.checkpoint_claim}}
    else:
        source = {"emptyDir": {}}
    found.append((kept, {"name": "checkpoint", **source}))
    if workers > 1:
        found.append((rendezvous.mount(), rendezvous.volume(job_name(job_id))))
    return found + secret_objects.folders(job_name(job_id), pod.secrets) + claims.volumes(pod.mounts)


def _in_memory(container: Container) -> Object:
    size = container.shared_memory
    return {"medium": "Memory"} | ({} if size is None else {"sizeLimit": str(size)})


def _environment(job_id: int, pod: Pod, workers: int) -> list[Object]:
    """What the user asked for, and what no user may change: rank, size and where the first worker is."""
    usual = {
        "PYTHONUNBUFFERED": "1",  # logs are seen when they are printed
        # Few images have an account of the user; programs ask for its name, such as PyTorch before 2.13.
        "LOGNAME": f"uid{pod.container.user_id or USER}",
    }
    ours = {
        "FAIRLOT_JOB_ID": str(job_id),
        "FAIRLOT_CHECKPOINT_DIR": CHECKPOINTS,
        **{name: pod.environment.get(name, value) for name, value in usual.items()},
        **rendezvous.variables(job_name(job_id), workers=workers, gpus=pod.gpus),
        **probes.variables(pod.endpoint),
        **secret_objects.plain_variables(pod.secrets),
        **claims.variables(pod.mounts),
    }
    told = {
        RANK: INDEX,
        "RANK": INDEX,
        "PET_NODE_RANK": INDEX,
        "FAIRLOT_EPOCH": EPOCH,
        "FAIRLOT_GENERATION": GENERATION,
    }
    turns: list[Object] = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for variable, annotation in told.items()
    ]
    taken = {*told, *ours}
    free = {key: value for key, value in pod.environment.items() if key not in taken}
    plain: list[Object] = [{"name": key, "value": _as_written(value)} for key, value in (free | ours).items()]
    hidden = secret_objects.variables(job_name(job_id), pod.secrets)
    return turns + plain + [one for one in hidden if one["name"] not in taken]


# --- what is asked of a Job that is there ----------------------------------------------------------------


def start(uid: str, *, at: int, turn: Turn) -> list[Operation]:
    """From epoch `at` to the turn's: it runs on its nodes, a gang once its pods are let through one by one."""
    return [
        *_at(uid, at),
        {"op": "test", "path": "/spec/suspend", "value": True},
        *_puts(ANNOTATIONS, _marks(turn)),
        *_puts("/spec/template/metadata/annotations", _marks_of_pods(turn)),
        {"op": "add", "path": f"{TEMPLATE}/affinity", "value": _on(turn.nodes)},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]


def stop(uid: str, *, at: int, epoch: int, token: str, because: str = "") -> list[Operation]:
    """Its pods are told to go, and the lease `epoch` can start them no more, if it had not yet.

    `because` is why, when nobody decided it.
    """
    return [
        *_at(uid, at),
        *_puts(ANNOTATIONS, _marks_of_lease(epoch, token, because)),
        {"op": "replace", "path": "/spec/suspend", "value": True},
    ]


def end(uid: str, *, at: int, because: str = "") -> list[Operation]:
    """Of one pod without a Job whose program runs: its kubelet ends it, and the pod stays.

    Its time is over, is what the kubelet takes it for: SIGTERM, the pod's own grace, SIGKILL; and only then Failed,
    with the reason DeadlineExceeded whatever the program's exit code is. A kubelet that still pulls an image hears
    it only then.
    """
    return [
        *_at(uid, at),
        {"op": "test", "path": "/status/phase", "value": "Running"},
        *_puts(ANNOTATIONS, {BECAUSE: because}),
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": OVER},
    ]


def note_why(uid: str, *, at: int, because: str) -> list[Operation]:
    """Of one pod without a Job: why it is about to be deleted, when nobody decided it."""
    return [*_at(uid, at), *_puts(ANNOTATIONS, {BECAUSE: because})]


def let_through(uid: str, *, node: str, members: str) -> list[Operation]:
    """Of one pod: it may be bound, to this node, as one of `members`. Once let through, it has no gate to test for."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        *_puts(ANNOTATIONS, {MEMBERS: members}),
        {"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: node}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]


def _at(uid: str, epoch: int) -> list[Operation]:
    """The fence: it is this Job, and it has come so far."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"{ANNOTATIONS}/{_escaped(EPOCH)}", "value": str(epoch)},
    ]


def _marks(turn: Turn) -> dict[str, str]:
    return _marks_of_lease(turn.epoch, turn.token, "") | {RANKS: json.dumps(list(turn.nodes))}


def _marks_of_lease(epoch: int, token: str, because: str) -> dict[str, str]:
    return {EPOCH: str(epoch), LEASE: token, BECAUSE: because}


def _marks_of_pods(turn: Turn) -> dict[str, str]:
    return {EPOCH: str(turn.epoch), LEASE: turn.token, GENERATION: turn.generation}


def _puts(path: str, annotations: Mapping[str, str]) -> list[Operation]:
    return [
        {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value} for key, value in annotations.items()
    ]


def _on(nodes: Sequence[str]) -> Object:
    among = {"key": HOSTNAME, "operator": "In", "values": sorted(set(nodes))}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [among]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _escaped(key: str) -> str:
    """As a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


# --- what a Job and its pods say -------------------------------------------------------------------------


def members_of(pods: Sequence[Object]) -> str:
    """Names these very pods, in whichever order."""
    uids = sorted(str(pod["metadata"]["uid"]) for pod in pods)
    return hashlib.sha256(" ".join(uids).encode()).hexdigest()[:16]


def epoch_of(thing: Object) -> int:
    """Of a Job or a pod of ours."""
    return int(thing["metadata"]["annotations"][EPOCH])


def is_bare(thing: Object) -> bool:
    """Whether it is a pod that no Job has made. What is asked of a Job may be asked of it, too."""
    return BARE in thing["metadata"]["labels"]


def is_told_to_end(pod: Object) -> bool:
    """By Fairlot or by others; it may have ended."""
    return "deletionTimestamp" in pod["metadata"] or pod["spec"].get("activeDeadlineSeconds") == OVER


def has_started(pod: Object) -> bool:
    """Whether its program runs, or has run."""
    found = pod.get("status", {}).get("containerStatuses", ())
    return any({"running", "terminated"} & status.get("state", {}).keys() for status in found)


def is_of(pod: Object, job: Object) -> bool:
    """Whether this very Job made the pod, not one of the same name before it; a bare pod is its own."""
    maker = pod["metadata"]["uid"] if is_bare(pod) else pod["metadata"]["labels"][CONTROLLER]
    return str(maker) == str(job["metadata"]["uid"])


def of_turn(job: Object, pods: Sequence[Object]) -> list[Object]:
    """Those that this very Job made for its present turn, which may have been begun by a Job before it."""
    return [pod for pod in pods if epoch_of(pod) == epoch_of(job) and is_of(pod, job)]


def job_id_of(thing: Object) -> int:
    """Of a Job or a pod of ours."""
    return int(thing["metadata"]["labels"][JOB])


def rank_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def began(job: Object) -> datetime | None:
    """When its present turn did, to the second; a bare pod is made for each."""
    told = job["metadata"]["creationTimestamp"] if is_bare(job) else job.get("status", {}).get("startTime")
    return datetime.fromisoformat(told) if told else None


def workers_of(job: Object) -> int:
    return int(job["metadata"]["annotations"][WORKERS])


def progress_pattern_of(job: Object) -> str:
    """Empty where there is none."""
    return str(job["metadata"]["annotations"].get(PROGRESS, ""))


def nodes_of(job: Object) -> list[str]:
    """Of each rank, where the Job's present turn puts it."""
    nodes: list[str] = json.loads(job["metadata"]["annotations"][RANKS])
    return nodes


def has_begun(job: Object) -> bool:
    """Whether it has had a turn; a new one has not, though its job may have."""
    return LEASE in job["metadata"]["annotations"]


def has_counted_ends(job: Object) -> bool:
    """Whether it takes workers of an earlier turn for done or failed, which nothing can take back."""
    status = job.get("status", {})
    being_counted = any(status.get("uncountedTerminatedPods", {}).values())
    counted = status.get("succeeded") or status.get("failed") or status.get("completedIndexes")
    return bool(counted or being_counted)


def is_suspended(job: Object) -> bool:
    """Whether it was told to be; its pods may still be there."""
    return bool(job["spec"].get("suspend"))


def is_gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))


def has_ended(pod: Object) -> bool:
    """Whether its containers are gone for good, and its GPUs free."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def holds_gpus(job: Object) -> bool:
    """Whether pods of it are there or still going: its GPUs are free only when none is."""
    status = job.get("status", {})
    return bool(status.get("active", 0) or status.get("terminating", 0))


def is_at_rest(thing: Object) -> bool:
    """Whether nothing of a Job, or of a bare pod, runs any more, or will without being told to."""
    return has_ended(thing) if is_bare(thing) else is_suspended(thing) and not holds_gpus(thing)


def condition(thing: Object, kind: str) -> Object | None:
    """The condition of this kind, where it is true."""
    for found in thing.get("status", {}).get("conditions", ()):
        if found["type"] == kind and found["status"] == "True":
            return dict(found)
    return None
