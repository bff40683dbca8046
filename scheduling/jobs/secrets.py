"""Creates, changes and reads the secrets of users and teams. Only backends get the secret texts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import refused_if_taken
from accounting.core.clock import now_from_database
from accounting.core.encryption import SealError, seal, unseal
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Tenant, User
from scheduling.backends.base import BackendError, SecretFolder, Secrets
from scheduling.models import Job, JobSecret, Secret
from scheduling.models.versions import require_version
from scheduling.spec.attachments import NAME, NAME_IN_WORDS, is_key, named_secrets
from scheduling.spec.job_spec import JobSpec, SpecError

MOST_KEYS = 50
MOST_BYTES = 64 * 1024  # of all texts of a secret together; some of them become environment variables
MOST_SECRETS = 200  # per user, and per team


@transaction.atomic(durable=True)
def create_secret(
    *, actor: User, name: str, values: Mapping[str, str], tenant: Tenant | None = None
) -> Secret:
    """Creates and returns a secret. It belongs to the actor or, if `tenant` is given, to all members of that team.

    `values` maps each key of the secret to a text. Raises NotAllowed if the actor does not manage `tenant`. Raises
    Refused, with the name of the field, if the name is invalid or taken or a text is invalid.
    """
    name = name.strip()
    if not NAME.fullmatch(name):
        raise Refused(f"A secret's name must have {NAME_IN_WORDS}.", "name")
    if tenant is not None:
        require(actor, "secret.change", tenant)
        if tenant.archived_at:
            raise Refused(f"{tenant.name} is archived.")
    elif not actor.is_active:
        raise NotAllowed("Only active users may have secrets.")
    secret = Secret(name=name, owner=None if tenant else actor, tenant=tenant)
    _fill(secret, values)
    if Secret.objects.filter(owner=secret.owner, tenant=tenant).count() >= MOST_SECRETS:
        raise Refused(f"At most {MOST_SECRETS} secrets are allowed. Delete a secret first.")
    with refused_if_taken(
        f"A secret named {name} already exists. Replace it, or choose another name.", "name"
    ):
        secret.save(force_insert=True)
    audit.record(actor=actor, verb="secret.create", target=secret, tenant=tenant, after={"keys": secret.keys})
    return secret


@transaction.atomic(durable=True)
def replace_secret(
    *, actor: User, secret: Secret, values: Mapping[str, str], seen: Collection[str] | None = None
) -> Secret:
    """Replaces all texts of a secret, and returns the secret. Running jobs keep the old texts until their next attempt.

    `seen`: the versions that the caller has seen (require_version). Raises NotAllowed unless the actor owns the secret
    or manages its team. Raises Refused if a text is invalid or the secret was deleted.
    """
    _require_writer(actor, secret)
    there = Secret.objects.select_for_update(of=("self",)).filter(pk=secret.pk).first()
    if there is None:
        raise Refused("The secret no longer exists, because somebody has deleted it.")
    require_version(there, seen)
    before = there.keys
    _fill(there, values)
    there.changed_at = now_from_database()
    there.save(update_fields=["keys", "sealed", "changed_at"])
    audit.record(
        actor=actor,
        verb="secret.replace",
        target=there,
        tenant=there.tenant,
        before={"keys": before},
        after={"keys": there.keys},
    )
    return there


@transaction.atomic(durable=True)
def delete_secret(*, actor: User, secret: Secret) -> None:
    """Deletes a secret. Does nothing if it is deleted already.

    Raises NotAllowed unless the actor owns the secret or manages its team. Raises Refused while an unfinished job uses
    the secret.
    """
    _require_writer(actor, secret)
    there = Secret.objects.select_for_update(of=("self",)).filter(pk=secret.pk).first()
    if there is None:
        return
    jobs = Job.objects.filter(named_secrets__secret=there).unfinished().order_by("pk")
    if count := jobs.count():
        named = ", ".join(f"{job.name} ({job.pk})" for job in jobs[:3])
        more = f" and {count - 3} more" if count > 3 else ""
        raise Refused(
            f"Jobs that have not ended use the secret {there.name}: {named}{more}. Wait until the jobs end, cancel"
            " them, or replace the content of the secret instead of deleting it."
        )
    audit.record(
        actor=actor, verb="secret.delete", target=there, tenant=there.tenant, before={"keys": there.keys}
    )
    there.delete()


def find_secrets(*, owner: User, tenant: Tenant, spec: JobSpec, lock: bool = False) -> dict[str, Secret]:
    """Returns the secrets that a spec names, by name. A secret of the owner takes precedence over one of the team.

    Raises SpecError if a secret is missing; the message does not reveal whether another team has it. If `lock` is True,
    the secrets cannot be deleted until the transaction ends.
    """
    wanted = named_secrets(spec)
    if not wanted:
        return {}
    among = Secret.objects.for_jobs_of(owner, tenant).filter(name__in=wanted)
    if lock:
        among = among.select_for_update(of=("self",), no_key=True)
    found: dict[str, Secret] = {}
    for secret in among:
        if secret.owner_id or secret.name not in found:
            found[secret.name] = secret
    if problems := _problems(spec, found, tenant.name):
        raise SpecError(problems)
    return found


def note_secrets(job: Job, found: Mapping[str, Secret]) -> None:
    """Links `job` to the secrets in `found`, by their names in the spec.

    The job then keeps these secrets, even if other secrets get the same names later.
    """
    JobSecret.objects.bulk_create(
        JobSecret(job=job, name=name, secret=secret) for name, secret in found.items()
    )


def secrets_of(job: Job, spec: JobSpec) -> Secrets:
    """Returns the decrypted secrets of a job for its backend: environment variables, files, and the image pull secret.

    Raises BackendError if a secret was deleted, may no longer be used by the job's owner, or cannot be decrypted.
    """
    if not named_secrets(spec):
        return Secrets()
    allowed = Secret.objects.for_jobs_of(job.owner, job.tenant).values("pk")
    named = JobSecret.objects.filter(job=job, secret__in=allowed).select_related("secret")
    found = {row.name: row.secret for row in named}
    if problems := _problems(spec, found, job.tenant.name):
        raise BackendError("; ".join(problems.values()))
    try:
        texts = {name: _opened(secret) for name, secret in found.items()}
    except SealError as error:
        raise BackendError(f"a secret cannot be decrypted: {error}") from None
    return Secrets(
        variables={variable: _text(said, texts) for variable, said in spec.secrets.items()},
        folders=[SecretFolder(one.name, one.place, texts[one.name]) for one in spec.secret_files],
        image=_docker_configuration(spec.image_pull_secret, texts),
    )


def text_of_secret(*, owner: User, tenant: Tenant, said: str) -> str:
    """Returns the text of the secret that `said` names, as name or name/key, for a job of `owner` in `tenant`.

    Raises SpecError if there is no such secret or key, if the key is missing, or if the secret cannot be decrypted.
    """
    name, _, key = said.partition("/")
    among = Secret.objects.for_jobs_of(owner, tenant).filter(name=name)
    found = sorted(among, key=lambda secret: secret.owner_id is None)[:1]
    for secret in found:
        if (key and key not in secret.keys) or (not key and len(secret.keys) > 1):
            raise SpecError({"": f"name one key of the secret {name} (available: {', '.join(secret.keys)})"})
        try:
            return _text(said, {name: _opened(secret)})
        except SealError as error:
            raise SpecError({"": f"the secret {name} cannot be decrypted: {error}"}) from None
    raise SpecError({"": f"neither you nor {tenant.name} has a secret named {name}"})


def _fill(secret: Secret, values: Mapping[str, str]) -> None:
    if not values or not all(text.strip() for text in values.values()):
        raise Refused("A secret needs a value. If it has several keys, each key needs a value.", "value")
    if len(values) > MOST_KEYS:
        raise Refused(f"A secret must have at most {MOST_KEYS} keys; this one has {len(values)}.", "value")
    if any("\0" in text for text in values.values()):
        raise Refused("A value must not contain zero bytes (U+0000).", "value")
    for number, key in enumerate(values, start=1):
        if not is_key(key):  # the message does not quote the key: it may be a secret text in the wrong place
            raise Refused(
                f"Key {number} has an invalid name. Accepted: 1 to 63 letters, digits and any of - _ .",
                "value",
            )
        if not values[key].strip("="):
            raise Refused(
                f"The value of key {number} contains only the character =. If you entered a secret value without a key,"
                " write KEY=VALUE.",
                "value",
            )
    try:
        if sum(len(text.encode()) for text in values.values()) > MOST_BYTES:
            raise Refused(
                f"The values of a secret must have at most {MOST_BYTES // 1024} KiB in total.", "value"
            )
        secret.sealed = seal(json.dumps(dict(values)).encode())
    except UnicodeEncodeError:  # the message of this error would quote the text
        raise Refused("The secret contains characters that are not valid Unicode.", "value") from None
    except SealError as error:
        raise Refused(str(error), "value") from None
    secret.keys = sorted(values)


def _opened(secret: Secret) -> dict[str, str]:
    texts: dict[str, str] = json.loads(unseal(bytes(secret.sealed)))
    return texts


def _text(said: str, texts: Mapping[str, Mapping[str, str]]) -> str:
    name, _, key = said.partition("/")
    return texts[name][key] if key else next(iter(texts[name].values()))


def _docker_configuration(name: str, texts: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the text of the image pull secret `name`, which is JSON in the format of `docker login`. Returns "" if
    `name` is empty.

    `texts` has the texts of the job's secrets, by name and key. Raises BackendError if the secret's text does not have
    this format.
    """
    if not name:
        return ""
    text = _text(name, texts)
    try:
        is_one = "auths" in json.loads(text)
    except (ValueError, TypeError):
        is_one = False
    if not is_one:
        raise BackendError(
            f"the secret {name} must contain a Docker configuration, that is, JSON with the key auths"
        )
    return text


def _problems(spec: JobSpec, found: Mapping[str, Secret], team: str) -> dict[str, str]:
    """Returns error messages, by field of the spec, for these errors:

    - The spec names a secret that does not exist.
    - A variable names a key that its secret does not have.
    - A variable names a secret with several keys, but does not say which key.

    `found` has the existing secrets by name. `team` is the team's name, for the messages.
    """
    problems: dict[str, str] = {}
    folders = [one.name for one in spec.secret_files]
    image = [spec.image_pull_secret] if spec.image_pull_secret else []
    named = {"secrets": _names(spec.secrets.values()), "secret_files": folders, "image_pull_secret": image}
    for field, names in named.items():
        if missing := [name for name in names if name not in found]:
            problems[field] = f"neither you nor {team} has a secret named {missing[0]}"
    for variable, said in spec.secrets.items() if not problems else ():
        name, _, key = said.partition("/")
        keys = found[name].keys
        if key and key not in keys:
            problems["secrets"] = f"the secret {name} has no key {key} (available: {', '.join(keys)})"
        elif not key and len(keys) > 1:
            problems["secrets"] = (
                f"{variable}: the secret {name} has several keys; add one, as in {name}/{keys[0]} (available:"
                f" {', '.join(keys)})"
            )
    return problems


def _names(references: Iterable[str]) -> list[str]:
    return [said.partition("/")[0] for said in references]


def _require_writer(actor: User, secret: Secret) -> None:
    if secret.tenant is not None:
        require(actor, "secret.change", secret.tenant)
    elif secret.owner_id != actor.pk:
        raise NotAllowed("Only the owner of a secret may change it.")
