"""The environment variables of a container."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scheduling.importers import credentials
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.report import Fate
from scheduling.spec.attachments import NAME, is_key
from scheduling.spec.job_spec import RESERVED_VARIABLES, VARIABLE_NAME

REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
OF_WORKER = '"$RANK"'  # the number of a worker, in a shell script
# By field of a pod, the text in a shell script that gives its value.
OF_WORKERS = {
    "status.podIP": "\"$(hostname -i | cut -d ' ' -f 1)\"",
    "status.podIPs": '"$(hostname -i)"',
    "metadata.name": '"$(hostname)"',
    "metadata.labels['training.kubeflow.org/replica-index']": OF_WORKER,
}
OF_COMPLETIONS = (
    "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "metadata.labels['batch.kubernetes.io/job-completion-index']",
)


def put(container: Fields, objects: Objects, draft: JobDraft, *, index: str = OF_WORKER) -> dict[str, str]:
    """Sets the variables and secrets. Returns the variables that only a worker knows, with the text of the shell that
    gives their value. `index` is this text for the number of a pod among those of its Job."""
    of_workers = OF_WORKERS | dict.fromkeys(OF_COMPLETIONS, index)
    known: dict[str, str] = {}
    at_start: dict[str, str] = {}
    for one in container.sections("envFrom"):
        known |= _put_all(one, objects, draft)
    for one in container.sections("env"):
        name = one.text("name")
        if "valueFrom" in one:
            at_start |= _put_from(name, one, objects, draft, of_workers)
            continue
        value = REFERENCE.sub(lambda found: known.get(found[1], found[0]), one.text("value"))
        fate, text = Fate.MAPPED, ""
        if "value" in one and not isinstance(one.get("value"), str):
            fate, text = (
                Fate.APPROXIMATED,
                "Kubernetes refuses a value that is no text. What was written is used.",
            )
        source = one.path
        if REFERENCE.search(value) and VARIABLE_NAME.fullmatch(name) and name not in RESERVED_VARIABLES:
            at_start[name] = _quoted(value)
            draft.report.approximated(
                source, "command", "The command sets this variable, as it refers to others."
            )
            continue
        known[name] = value
        draft.variable(name, value, source, text, fate)
    return at_start


def _quoted(value: str) -> str:
    """Returns the value in double quotes for the shell, with $(NAME) as ${NAME}."""
    plain = re.sub(r'(["\\`]|\$(?!\())', r"\\\1", value)
    return f'"{REFERENCE.sub(lambda found: f"${{{found[1]}}}", plain)}"'


def _put_all(one: Fields, objects: Objects, draft: JobDraft) -> dict[str, str]:
    """Sets the variables of a whole ConfigMap or Secret. Returns those whose value is known."""
    prefix, known = one.text("prefix"), {}
    config, secret = one.section("configMapRef"), one.section("secretRef")
    if config:
        data = objects.config_map(config.text("name"))
        if data is None:
            draft.report.dropped(
                one.path, "This ConfigMap is not in the file. Write its variables into the field variables."
            )
            return {}
        draft.report.mapped(one.path, "variables", "The values of the ConfigMap become variables.")
        for key in data:
            known[prefix + key] = data.text(key)
            draft.variable(prefix + key, data.text(key), data.at(key))
    elif secret:
        name, keys = secret.text("name"), objects.secret_keys(secret.text("name"))
        if keys is None or not NAME.fullmatch(name):
            draft.report.dropped(
                one.path,
                "The keys of this Secret are not in the file. Store it as a secret, and write each of its"
                " variables into"
                " the field secrets.",
            )
            return {}
        for key in keys:
            said = f"Store the Secret {name} with its keys as a secret in Fairlot."
            draft.secret(prefix + key, f"{name}/{key}", one.path, said, Fate.APPROXIMATED)
    return known


def _put_from(
    name: str, one: Fields, objects: Objects, draft: JobDraft, of_workers: Mapping[str, str]
) -> dict[str, str]:
    report, path, source = draft.report, one.path, one.section("valueFrom")
    if secret := source.section("secretKeyRef"):
        _put_secret(name, secret, path, draft)
    elif config := source.section("configMapKeyRef"):
        data = objects.config_map(config.text("name"))
        if data is not None and config.text("key") in data:
            draft.variable(name, data.text(config.text("key")), path, "The value of the ConfigMap.")
            report.mapped(data.at(config.text("key")), f"variables.{name}")
        else:
            draft.secret(
                name, credentials.secret_name(config.text("name")), path,
                "The value is in a ConfigMap that is not in the file. Write it into the field variables, or store it as"
                " this secret.", Fate.APPROXIMATED,
            )  # fmt: skip
    elif (at := source.section("fieldRef").text("fieldPath")) in of_workers:
        if VARIABLE_NAME.fullmatch(name) and name not in RESERVED_VARIABLES:
            report.approximated(path, "command", f"The command sets this variable to {of_workers[at]}.")
            return {name: of_workers[at]}
        report.dropped(path, "Fairlot sets this variable itself.")
    else:
        report.dropped(path, "This value of the pod is not known to jobs. The variable is not set.")
    return {}


def _put_secret(name: str, secret: Fields, path: str, draft: JobDraft) -> None:
    stored, key = secret.text("name"), secret.text("key")
    plain = re.sub(r"[^a-z0-9-]", "-", stored.lower()).strip("-")[:63]
    if not NAME.fullmatch(plain) or not is_key(key):
        draft.report.refused_at(path, "The name or the key of the Secret cannot be used in Fairlot.")
        return
    draft.secret(
        name, f"{plain}/{key}", path,
        f"Store the Secret as the secret {plain} with the key {key[:63]} in Fairlot.", Fate.APPROXIMATED,
    )  # fmt: skip
