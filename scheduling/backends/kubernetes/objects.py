"""A gang as a Job of Kubernetes, and the requests that start, let through, stop and move it.

Every request is one JSON-Patch that begins with tests of the Job's uid and epoch: the API server takes
all of it or nothing, so a request that comes twice, late, or from a worker that was overtaken has no
effect (it is answered with 422). What a pod may be is decided here; users fill in what `Pod` holds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduling.backends.kubernetes.api import Object

Operation: TypeAlias = Mapping[str, object]

OURS = "fairlot.io"
JOB, TOKEN, EPOCH, GATE = f"{OURS}/job", f"{OURS}/token", f"{OURS}/epoch", f"{OURS}/placement"
INDEX = "batch.kubernetes.io/job-completion-index"
HOSTNAME = "kubernetes.io/hostname"
TEMPLATE = "/spec/template/spec"
# A finished Job stays as a tombstone, so that no late request can make it anew.
TOMBSTONE_SECONDS = 24 * 3600
RENDEZVOUS_PORT = 29500
RANK = "FAIRLOT_RANK"


@dataclass(frozen=True, slots=True)
class Pod:
    """What each worker of a gang is to be."""

    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    gpus: int
    gpu_resource: str = "nvidia.com/gpu"
    grace_seconds: float = 30.0


def job_name(job_id: int) -> str:
    """Always the same for a job, so that making its Job twice is refused; short enough for its pods' names."""
    number = base64.b32encode(job_id.to_bytes(5, "big")).decode().lower()
    return f"fairlot-{number}"


def new_job(job_id: int, pod: Pod, *, workers: int, token: str) -> Object:
    """A Job that exists and does not run: suspended, at epoch 0, with its pods behind a gate if it is a gang."""
    name = job_name(job_id)
    labels = {"app.kubernetes.io/managed-by": "fairlot", JOB: str(job_id)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {EPOCH: "0", TOKEN: token}},
        "spec": {
            "suspend": True,
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
                "metadata": {"labels": labels, "annotations": {EPOCH: "0"}},
                "spec": _pod_spec(name, pod, workers),
            },
        },
    }


def _pod_spec(name: str, pod: Pod, workers: int) -> Object:
    """As Kubernetes' restricted standard wants it, without rights and without the cluster's own addresses."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, round(pod.grace_seconds)),
        "subdomain": name,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "schedulingGates": [{"name": GATE}] if workers > 1 else [],
        "containers": [
            {
                "name": "main",
                "image": pod.image,
                "command": list(pod.command),
                "env": _environment(name, pod.environment, workers),
                "resources": {"limits": {pod.gpu_resource: str(pod.gpus)}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }


def _environment(name: str, wanted: Mapping[str, str], workers: int) -> list[Object]:
    """What the user asked for, and what no user may change: rank, size and where the first worker is."""
    ours = {
        "FAIRLOT_WORLD_SIZE": str(workers),
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    ranks: list[Object] = [{"name": variable, "valueFrom": rank} for variable in (RANK, "RANK")]
    taken = {RANK, "RANK", *ours}
    free = {key: value for key, value in wanted.items() if key not in taken}
    # Dollar signs would be taken for references to other variables.
    plain: list[Object] = [
        {"name": key, "value": value.replace("$", "$$")} for key, value in (free | ours).items()
    ]
    return ranks + plain


# --- what is asked of a Job that is there ----------------------------------------------------------------


def start(uid: str, *, epoch: int, nodes: Sequence[str]) -> list[Operation]:
    """From `epoch` to the next: it runs on these nodes, a gang once its pods are let through one by one."""
    return [
        *_fenced(uid, epoch),
        {"op": "test", "path": "/spec/suspend", "value": True},
        {
            "op": "add",
            "path": f"/spec/template/metadata/annotations/{_escaped(EPOCH)}",
            "value": str(epoch + 1),
        },
        {"op": "add", "path": f"{TEMPLATE}/affinity", "value": _on(nodes)},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]


def stop(uid: str, *, epoch: int) -> list[Operation]:
    """From `epoch` to the next: its pods are told to go. Stopping what is stopped changes the epoch alone."""
    return [*_fenced(uid, epoch), {"op": "replace", "path": "/spec/suspend", "value": True}]


def let_through(uid: str, *, node: str) -> list[Operation]:
    """Of one pod: it may be bound, to this node. A pod that was let through has no gate to test for."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: node}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]


def _fenced(uid: str, epoch: int) -> list[Operation]:
    path = f"/metadata/annotations/{_escaped(EPOCH)}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": str(epoch)},
        {"op": "replace", "path": path, "value": str(epoch + 1)},
    ]


def _on(nodes: Sequence[str]) -> Object:
    among = {"key": HOSTNAME, "operator": "In", "values": sorted(set(nodes))}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [among]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _escaped(key: str) -> str:
    """As a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


# --- what a Job and its pods say -------------------------------------------------------------------------


def epoch_of(thing: Object) -> int:
    """Of a Job or a pod of ours."""
    return int(thing["metadata"]["annotations"][EPOCH])


def is_gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))


def holds_gpus(job: Object) -> bool:
    """Whether pods of it are there or still going: its GPUs are free only when none is."""
    status = job.get("status", {})
    return bool(status.get("active", 0) or status.get("terminating", 0))
