"""The volumes of a pod and where its container mounts them."""

from __future__ import annotations

import re

from scheduling.importers.amounts import NoAmount, quantity
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.report import Fate
from scheduling.spec.attachments import NAME

SHM = "/dev/shm"  # noqa: S108 - the folder of shared memory in a container
NETWORK = ("nfs", "csi", "cephfs", "glusterfs", "iscsi", "rbd", "gcePersistentDisk", "awsElasticBlockStore",
           "azureFile", "azureDisk", "flexVolume", "ephemeral", "fc", "portworxVolume")  # fmt: skip
WHOLE = "A volume is mounted as a whole. Remove subPath, and use the longer path in the command."


def put(spec: Fields, container: Fields, objects: Objects, draft: JobDraft) -> None:
    """Sets volumes, secret files and shared memory for the mounts of the container."""
    volumes = {one.text("name"): one for one in spec.sections("volumes")}
    report = draft.report
    for mount in container.sections("volumeMounts"):
        name, path = mount.text("name"), mount.text("mountPath")
        volume = volumes.pop(name, None) or next(
            (one for one in spec.sections("volumes") if one.text("name") == name), None
        )
        if volume is None:
            report.refused_at(mount.path, "No volume of this name is defined.")
        elif "hostPath" in volume and path.rstrip("/") != SHM:
            report.refused_at(
                volume.at("hostPath"),
                "Folders of the node cannot be mounted. Ask an operator for a volume, and list it in the field"
                " volumes.",
                "volumes",
            )
        elif "hostPath" in volume or "emptyDir" in volume:
            _put_scratch(volume, mount, path, draft)
        elif mount.text("subPath") or mount.text("subPathExpr"):
            report.refused_at(mount.path, WHOLE, "volumes")
        else:
            _put_volume(volume, mount, path, draft)
    for name, volume in volumes.items():
        if "hostPath" in volume:
            report.refused_at(volume.at("hostPath"), "Folders of the node cannot be mounted.", "volumes")
        elif not report.covers(volume.path):
            report.dropped(volume.path, f"The container does not mount the volume {name[:60]}.")
    if container.items("volumeDevices"):
        report.refused_at(container.at("volumeDevices"), "Devices of the node cannot be used.")


def _put_scratch(volume: Fields, mount: Fields, path: str, draft: JobDraft) -> None:
    """Sets shared memory for a folder in memory at /dev/shm. Other temporary folders are dropped."""
    report, empty = draft.report, volume.section("emptyDir")
    if path.rstrip("/") == SHM:
        try:
            size = int(quantity(empty.text("sizeLimit"))) if "sizeLimit" in empty else 0
        except NoAmount as error:
            report.refused_at(empty.at("sizeLimit"), str(error), "shm")
            return
        if size:
            draft.amount("shm", size, volume.path)
        else:
            report.approximated(volume.path, "shm", "Shared memory is half of the worker's memory.")
        report.mapped(mount.path, "shm", "Each worker has shared memory there.")
        return
    if path.startswith("/tmp"):  # noqa: S108 - a folder in the job's container
        report.mapped(volume.path, "", "Each worker can write to /tmp anyway.")
        report.mapped(mount.path, "", "Each worker can write to /tmp anyway.")
        return
    said = f"There is no temporary folder at {path[:80]}. Let the program write to /tmp, or to $FAIRLOT_CHECKPOINT_DIR."
    report.dropped(volume.path, said)
    report.dropped(mount.path, said)


def _put_volume(volume: Fields, mount: Fields, path: str, draft: JobDraft) -> None:
    report = draft.report
    name = volume.text("name")
    for inner in ("readOnly", "name", "mountPath"):
        if inner in mount:
            report.mapped(mount.at(inner), "volumes" if inner != "readOnly" else "",
                          "Whether a job may write to a volume is decided when it is granted." if inner == "readOnly"
                          else "")  # fmt: skip
    if claim := volume.section("persistentVolumeClaim"):
        draft.volume(_plain(claim.text("claimName")), path, volume.path)
    elif config := volume.section("configMap"):
        _put_files(_plain(config.text("name")), path, volume, "ConfigMap", draft)
    elif secret := volume.section("secret"):
        _put_files(_plain(secret.text("secretName")), path, volume, "Secret", draft)
    elif any(kind in volume for kind in NETWORK):
        draft.volume(_plain(name), path, volume.path, "The storage itself is not taken over.")
    elif "downwardAPI" in volume:
        report.dropped(volume.path, "Files about the pod do not exist.")
    else:
        report.refused_at(volume.path, "This kind of volume cannot be used in Fairlot.", "volumes")


def _put_files(name: str, path: str, volume: Fields, kind: str, draft: JobDraft) -> None:
    draft.secret_files(
        name, path, volume.path,
        f"Store the files of the {kind} {name} as a secret with this name in Fairlot: its keys become files at {path}.",
        Fate.APPROXIMATED,
    )  # fmt: skip


def _plain(name: str) -> str:
    """Returns a name that Fairlot accepts, where possible: dots become hyphens."""
    plain = re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")[:63].strip("-")
    return plain if NAME.fullmatch(plain) else name
