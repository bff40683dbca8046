"""A gang's secrets as Kubernetes Secrets, which are written before each attempt and deleted together with the gang's
Job.

The pod template refers to the Secrets by name and never changes; only the Secrets' content is written again for each
attempt. Each write creates or replaces a whole Secret. Fairlot has no right to patch Secrets, because the answer to a
patch would contain the Secret's content.

Each Secret carries the epoch for which it was written. The admission policy fairlot-secrets refuses a write with a
lower epoch.
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
# File mode: readable only by the pod's own user and group.
MODE = 0o440
TRIES = 3  # to write an object that other processes create and delete at the same time


def is_needed(secrets: Secrets) -> bool:
    """Returns whether a gang with these secrets needs Kubernetes Secrets."""
    return any(_texts("", secrets))


def write(api: Api, namespace: str, job: Object, secrets: Secrets, *, annotations: Mapping[str, str]) -> None:
    """Writes all Secrets of the gang whose Job is `job`, each with `annotations`. Idempotent.

    Raises Refused and Unreachable, whose messages never contain a secret value.
    """
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
    """Creates or replaces the object. Tries again if another process creates or deletes it at the same time.

    Raises Refused after TRIES tries.
    """
    for _ in range(TRIES):
        with suppress(Taken):
            api.create(path, thing)
            return
        with suppress(Missing):
            api.replace(f"{path}/{thing['metadata']['name']}", thing)
            return
    raise Refused(409, {"reason": "Conflict"})


def variables(job: str, secrets: Secrets) -> list[Object]:
    """Returns `env` entries that take the gang's secret variables from their Secret. `job` is the name of the gang's
    Job."""
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": _of_variables(job), "key": variable}}}
        for variable in secrets.variables
    ]


def folders(job: str, secrets: Secrets) -> list[tuple[Object, Object]]:
    """Returns a pair for each secret folder: the entry for the container's `volumeMounts` and the entry for the pod's
    `volumes`.

    `job` is the name of the gang's Job.
    """
    found: list[tuple[Object, Object]] = []
    for number, folder in enumerate(secrets.folders):
        name = f"secret-{number}"
        mount = {"name": name, "mountPath": folder.path, "readOnly": True}
        source = {"secretName": _of_folder(job, number), "defaultMode": MODE}
        found.append((mount, {"name": name, "secret": source}))
    return found


def pulling(job: str, secrets: Secrets) -> dict[str, list[Object]]:
    """Returns the pod spec field that names the Secret with the credentials for pulling the image. `job` is the name of
    the gang's Job.

    Returns an empty dictionary if the image needs no credentials.
    """
    return {"imagePullSecrets": [{"name": _of_image(job)}]} if secrets.image else {}


def plain_variables(secrets: Secrets) -> dict[str, str]:
    """Returns the environment variable FAIRLOT_SECRETS_DIR; empty if the gang has no secret folders.

    The variable names the folder in which secrets are mounted if the user chose no path.
    """
    return {"FAIRLOT_SECRETS_DIR": SECRETS} if secrets.folders else {}


def _texts(job: str, secrets: Secrets) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields a triple for each Secret of the gang: its name, its type, and its content by key. `job` is the Job's
    name."""
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
    """Returns `refusal` with a new message, because the API server's message may quote the content of the Secret
    `name`.

    The new message contains the API server's message only for HTTP status 403. An admission policy or a quota writes
    such messages.
    """
    said = refusal.message if refusal.code == 403 else ""
    status = {"message": f"the Secret {name} could not be written: {said or refusal.reason}"}
    return type(refusal)(refusal.code, {**status, "reason": refusal.reason}, refusal.retry_after)
