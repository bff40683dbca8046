"""Volumes of jobs in Kubernetes: PersistentVolumeClaims in the tenant's namespace, which a gang's pods mount."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.backends.base import BackendError, Mount
from scheduling.backends.kubernetes.api import Api, Missing, Object
from scheduling.spec.paths import VOLUMES

PATH = "/api/v1/namespaces/{}/persistentvolumeclaims/{}"


def check(api: Api, namespace: str, mounts: Sequence[Mount]) -> None:
    """Raises BackendError if a PersistentVolumeClaim that the gang mounts does not exist.

    Without this check, the gang's pods would hold GPUs while they wait for the claim.
    """
    for mount in mounts:
        try:
            api.get(PATH.format(namespace, mount.source))
        except Missing:
            raise BackendError(
                f"the volume {mount.name} needs the PersistentVolumeClaim {mount.source}, which does not exist in the"
                f" namespace {namespace}: ask an administrator of the cluster to create it"
            ) from None


def volumes(mounts: Sequence[Mount]) -> list[tuple[Object, Object]]:
    """Returns a pair for each mount: the entry for the container's `volumeMounts` and the entry for the pod's
    `volumes`."""
    found: list[tuple[Object, Object]] = []
    for number, one in enumerate(mounts):
        name = f"volume-{number}"
        mount = {"name": name, "mountPath": one.path, "readOnly": one.read_only}
        claim = {"claimName": one.source, "readOnly": one.read_only}
        found.append((mount, {"name": name, "persistentVolumeClaim": claim}))
    return found


def variables(mounts: Sequence[Mount]) -> dict[str, str]:
    """Returns the environment variable FAIRLOT_VOLUMES_DIR; an empty dictionary if the gang has no mounts.

    The variable names the folder in which volumes are mounted if the user chose no path.
    """
    return {"FAIRLOT_VOLUMES_DIR": VOLUMES} if mounts else {}
