"""A gang's secrets as Kubernetes Secrets, written before each attempt and deleted with its Job.

The pods' template names them and never changes; their content is written again for every attempt. Each write
replaces the whole Secret and needs the rights to create and update. The right to patch would allow reading a Secret,
because the API server returns the patched object. The policy fairlot-secrets fences the writes: a Secret carries the
epoch that it was written for, and this epoch only grows.
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
# Readable only by the pod's own user and group.
MODE = 0o440
TRIES = 3  # while others create and delete the same object


def is_needed(secrets: Secrets) -> bool:
    """Returns whether there is anything to write."""
    return any(_texts("", secrets))


def write(api: Api, namespace: str, job: Object, secrets: Secrets, *, annotations: Mapping[str, str]) -> None:
    """Writes all Secrets of the job. Idempotent. Refused and Unreachable repeat nothing of their content."""
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
            raise _without_content(refusal, name) from None


def _put(api: Api, path: str, thing: Object) -> None:
    """Creates or replaces the object, while others may create or delete it too."""
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return
        with suppress(Missing):
            api.replace(f"{path}/{thing['metadata']['name']}", thing)
            return
    raise Refused(409, {"reason": "Conflict"})


def variables(job: str, secrets: Secrets) -> list[Object]:
    """Returns entries for a container's `env`."""
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": _of_variables(job), "key": variable}}}
        for variable in secrets.variables
    ]


def folders(job: str, secrets: Secrets) -> list[tuple[Object, Object]]:
    """Returns for each mount its volumeMounts entry and its volumes entry."""
    found: list[tuple[Object, Object]] = []
    for number, folder in enumerate(secrets.folders):
        name = f"secret-{number}"
        mount = {"name": name, "mountPath": folder.path, "readOnly": True}
        source = {"secretName": _of_folder(job, number), "defaultMode": MODE}
        found.append((mount, {"name": name, "secret": source}))
    return found


def pulling(job: str, secrets: Secrets) -> dict[str, list[Object]]:
    """Returns the fields of a pod that name the credentials for its image."""
    return {"imagePullSecrets": [{"name": _of_image(job)}]} if secrets.image else {}


def plain_variables(secrets: Secrets) -> dict[str, str]:
    """Returns the variable with the folder of secrets that have no path of the user's."""
    return {"FAIRLOT_SECRETS_DIR": SECRETS} if secrets.folders else {}


def _texts(job: str, secrets: Secrets) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields the name, type and content of each Secret."""
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


def _without_content(refusal: Refused, name: str) -> Refused:
    """Returns the same refusal without the API server's message, except that of a policy or quota."""
    said = refusal.message if refusal.code == 403 else ""
    status = {"message": f"the Secret {name} could not be written: {said or refusal.reason}"}
    return type(refusal)(refusal.code, {**status, "reason": refusal.reason}, refusal.retry_after)
