"""Says how users get the files of a job from the cluster itself, where the portal has no reader (reader_pods.py)."""

from __future__ import annotations

import json

from scheduling.backends.base import FilesElsewhere
from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.objects import CHECKPOINTS, USER, job_name

IMAGE = "busybox:stable"
ABOUT_AN_HOUR = 3600  # seconds after which the pod of the commands ends by itself


def elsewhere(job_id: int, namespace: str, claim: str, why: str) -> FilesElsewhere:
    """Returns the error for a request for a job's files. It names the claim, the folder in it, and the commands.

    - `claim`: the PersistentVolumeClaim for checkpoints; empty if the cluster has none.
    - `why`: why there is no reader; empty if an administrator wants none.
    """
    if not claim:
        return FilesElsewhere(
            "No claim for checkpoints was named when this cluster was attached. The files of this job are in its pods,"
            " and end with them. Use a volume for files that should last."
        )
    message = (
        f"The files that the job writes to FAIRLOT_CHECKPOINT_DIR are in the PersistentVolumeClaim {claim} of the "
        f"namespace {namespace}, in the folder {job_name(job_id)}. The portal cannot read them"
        f"{f': {why}' if why else ''}. With your own right to create pods in this namespace, the following commands "
        "copy the folder."
    )
    return FilesElsewhere(message, _commands(job_id, namespace, claim))


def _commands(job_id: int, namespace: str, claim: str) -> str:
    pod, folder = f"files-of-{job_name(job_id)}", job_name(job_id)
    kubectl = f"kubectl --namespace {namespace}"
    overrides = json.dumps({"spec": _spec(claim, folder)})
    return "\n".join(
        (
            f"{kubectl} run {pod} --image {IMAGE} --restart Never --overrides '{overrides}'",
            f"{kubectl} wait pod/{pod} --for condition=Ready",
            f"{kubectl} cp {pod}:{CHECKPOINTS} {folder}",
            f"{kubectl} delete pod {pod}",
        )
    )


def _spec(claim: str, folder: str) -> Object:
    """Returns the parts of a pod that reads one job's folder of the claim, and may do nothing else."""
    container = {
        "name": "files",
        "image": IMAGE,
        "command": ["sleep", str(ABOUT_AN_HOUR)],
        "volumeMounts": [{"name": "files", "mountPath": CHECKPOINTS, "subPath": folder, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "activeDeadlineSeconds": ABOUT_AN_HOUR,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
    }
