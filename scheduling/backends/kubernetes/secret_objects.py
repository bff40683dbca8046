"""A gang's secrets as Secrets of Kubernetes, which are written before each turn and go when its Job does.

The pods' template, which stays as it is made, names them; what they hold is written anew for every turn. Each write is
of the whole Secret, by rights to create and to update: who may patch a Secret may read it, by what the API server
answers. The policy fairlot-secrets fences it: a Secret bears the epoch that it was written for, and that only grows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import suppress

from scheduling.backends.base import Secrets
from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused, Taken, Unauthorized
from scheduling.spec.paths import SECRETS

PATH = "/api/v1/namespaces/{}/secrets"
OPAQUE = "Opaque"
# Readable for the user and group that the pod runs as, and for nobody else.
MODE = 0o440
TRIES = 3  # to write what others make and delete at the same time


def is_needed(secrets: Secrets) -> bool:
    """Whether there is anything to write."""
    return any(_texts("", secrets))


def write(api: Api, namespace: str, job: Object, secrets: Secrets, *, annotations: Mapping[str, str]) -> None:
    """All of them as they are now; twice is as good as once. Refused and Unreachable repeat nothing of it."""
    about = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    for name, kind, texts in _texts(about["name"], secrets):
        thing = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": kind,
            "metadata": {
                "name": name,
                "labels": about["labels"],
                "annotations": dict(annotations),
                "ownerReferences": [owner],
            },
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
        }
        try:
            _put(api, PATH.format(namespace), thing)
        except Unauthorized:
            raise
        except Refused as refusal:
            raise _wordless(refusal, name) from None


def _put(api: Api, path: str, thing: Object) -> None:
    """Makes it, or replaces the one of its name; others may make or delete that meanwhile."""
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return
        with suppress(Missing):
            api.replace(f"{path}/{thing['metadata']['name']}", thing)
            return
    raise Refused(409, {"reason": "Conflict"})


def variables(job: str, secrets: Secrets) -> list[Object]:
    """Of a container's `env`."""
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": _of_variables(job), "key": variable}}}
        for variable in secrets.variables
    ]


def folders(job: str, secrets: Secrets) -> list[tuple[Object, Object]]:
    """What is mounted, and what of."""
    found: list[tuple[Object, Object]] = []
    for number, folder in enumerate(secrets.folders):
        name = f"secret-{number}"
        mount = {"name": name, "mountPath": folder.path, "readOnly": True}
        source = {"secretName": _of_folder(job, number), "defaultMode": MODE}
        found.append((mount, {"name": name, "secret": source}))
    return found


def pulling(job: str, secrets: Secrets) -> dict[str, list[Object]]:
    """Of a pod, with what its image is pulled."""
    return {"imagePullSecrets": [{"name": _of_image(job)}]} if secrets.image else {}


def plain_variables(secrets: Secrets) -> dict[str, str]:
    """Where programs find the folders whose place nobody chose."""
    return {"FAIRLOT_SECRETS_DIR": SECRETS} if secrets.folders else {}


def _texts(job: str, secrets: Secrets) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Name, type and texts of each Secret."""
    if secrets.variables:
        yield _of_variables(job), OPAQUE, secrets.variables
    for number, folder in enumerate(secrets.folders):
        yield _of_folder(job, number), OPAQUE, folder.files
    if secrets.image:
        yield _of_image(job), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": secrets.image}


def _of_variables(job: str) -> str:
    return f"{job}-variables"


def _of_image(job: str) -> str:
    return f"{job}-image"


def _of_folder(job: str, number: int) -> str:
    return f"{job}-files-{number}"


def _wordless(refusal: Refused, name: str) -> Refused:
    """The same refusal; of what the API server says only what a policy or a quota says is kept."""
    said = refusal.message if refusal.code == 403 else ""
    status = {"message": f"the Secret {name} could not be written: {said or refusal.reason}"}
    return type(refusal)(refusal.code, {**status, "reason": refusal.reason}, refusal.retry_after)
