"""Actions of users on services. The controller (scheduling/services/replicas.py) then creates and ends replicas."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership, Tenant, User
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_service
from scheduling.core.locks import stay_attached
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.later import check_later, why_never
from scheduling.models import Cluster, Service, ServiceRevision
from scheduling.models.event_codes import ServiceEventKind as Kind
from scheduling.models.ownership import require_changeable
from scheduling.models.versions import require_version
from scheduling.services.replicas import give_up, judge, make_current, note
from scheduling.spec.job_spec import JobSpec, SpecError

MOST_REPLICAS = 1000
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
LONGEST_DEADLINE = 24 * 3600
LIMITS = {
    "replicas": (0, MOST_REPLICAS),
    "max_surge": (0, MOST_REPLICAS),
    "max_unavailable": (0, MOST_REPLICAS),
    "progress_deadline_seconds": (10, LONGEST_DEADLINE),
}


@fetches_code
@transaction.atomic(durable=True)
def create_service(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    replicas: int = 1,
    even_if_never: bool = True,
    **rules: Any,
) -> Service:
    """Creates a service owned by `actor` in `tenant`. The service gets the name in the spec.

    `rules` are other fields of Service, such as `max_surge`. Raises NotAllowed unless the actor is a member of the
    tenant, and Refused if the name is taken. Raises SpecError if the spec or a rule is invalid for a service. If
    `even_if_never` is False, also raises Refused if a replica could never run.
    """
    _require_member(actor, tenant)
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it accepts no new services.", field="tenant")
    stay_attached(cluster.pk)
    if not Cluster.objects.attached().filter(pk=cluster.pk).exists():
        raise Refused(f"{cluster.name} is detached; it accepts no new services.", field="cluster")
    values = {"replicas": replicas, **rules}
    _check_rules(Service(**values))
    _check(spec, tenant, cluster, actor, even_if_never=even_if_never)
    service = Service(tenant=tenant, owner=actor, cluster=cluster, name=spec.name, **values)
    try:
        with transaction.atomic():
            service.save(force_insert=True)
    except IntegrityError:
        raise Refused(f"{tenant.name} already has a service {spec.name}.", field="name") from None
    _revise(service, spec, actor)
    note(service, Kind.CREATED, user=actor.get_username(), replicas=replicas)
    _tell(service, actor, "service.create", after=values)
    return service


@fetches_code
@transaction.atomic(durable=True)
def change_service(
    *,
    actor: User,
    service: Service,
    spec: JobSpec | None = None,
    stopped: bool | None = None,
    again: bool = False,
    even_if_never: bool = True,
    seen: Collection[str] | None = None,
    **rules: Any,
) -> Service:
    """Changes a service: its spec, whether it is stopped, and the fields of Service in `rules`, such as `replicas`.

    A spec that differs from the current one creates a revision and rolls it out; an equal spec does not. `again` rolls
    out the current spec as a new revision, which replaces all replicas. Replicas of the new revision run with the
    actor's rights. If `even_if_never` is False, raises Refused if a replica with the new
    spec could never run. `seen`: the versions that the caller has seen (require_version).
    """
    service = _locked(actor, service)
    require_version(service, seen)
    before: dict[str, Any] = {name: getattr(service, name) for name in rules}
    for name, value in rules.items():
        setattr(service, name, value)
    _check_rules(service)
    changed = {name: value for name, value in rules.items() if value != before[name]}
    by = actor.get_username()
    if "replicas" in changed:
        note(service, Kind.SCALED, user=by, before=before["replicas"], replicas=service.replicas)
    if rest := {name: value for name, value in changed.items() if name != "replicas"}:
        note(service, Kind.CHANGED, user=by, settings=rest)
    service.save(update_fields=list(rules) or None)
    if stopped is not None and stopped != (service.stopped_at is not None):
        changed["stopped"] = stopped
        service.stopped_at = now_from_database() if stopped else None
        service.save(update_fields=["stopped_at"])
        note(service, Kind.STOPPED if stopped else Kind.STARTED, user=by)
    if again and spec is None and service.current is not None:
        spec = JobSpec.stored(service.current.spec)
    if spec is not None and (
        number := _update(service, spec, actor, again=again, even_if_never=even_if_never)
    ):
        changed["revision"] = number
    if changed:
        was = {name: before[name] for name in changed if name in before}
        _tell(service, actor, "service.change", before=was, after=changed)
    return service


@transaction.atomic(durable=True)
def roll_back_service(*, actor: User, service: Service, number: int) -> Service:
    """Rolls out the earlier revision that has this number. Marks the current revision as failed if its replicas ended
    by themselves or were not ready. Raises Refused if the service has no such revision."""
    service = _locked(actor, service)
    revision = service.revisions.filter(number=number).first()
    if revision is None:
        raise Refused(f"{service.name} has no revision {number}.", field="revision")
    if revision == service.current:
        return service
    now = now_from_database()
    judge(service, at=now)
    before = service.current.number if service.current else None
    why = give_up(service, actor=actor, at=now)
    make_current(service, revision, at=now)
    failed = {"failed": before, "why": why} if why else {}
    note(service, Kind.ROLLED_BACK, user=actor.get_username(), before=before, revision=number, **failed)
    _tell(service, actor, "service.roll_back", before={"revision": before}, after={"revision": number})
    return service


@transaction.atomic(durable=True)
def remove_service(*, actor: User, service: Service) -> Service:
    """Removes the service, so that the controller ends all its replicas. Does nothing if it is removed already.

    The history and the cost of the replicas are kept.
    """
    require_changeable(actor, service, "remove this service")
    service = Service.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=service.pk)
    if service.removed_at is None:
        service.removed_at = now_from_database()
        service.save(update_fields=["removed_at"])
        note(service, Kind.REMOVED, user=actor.get_username())
        _tell(service, actor, "service.remove")
    return service


def _require_member(actor: User, tenant: Tenant) -> None:
    # A revision runs with the rights and secrets of its author.
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may change its services.")


def _locked(actor: User, service: Service) -> Service:
    """Locks the service's row until the transaction ends, and returns the service.

    Raises NotAllowed if the actor may not change the service, and Refused if it was removed.
    """
    require_changeable(actor, service, "change this service")
    services = Service.objects.select_related("tenant", "cluster", "owner", "current", "good")
    locked = services.select_for_update(of=("self",)).get(pk=service.pk)
    if locked.removed_at:
        raise Refused(f"{locked.name} was removed.")
    return locked


def _update(service: Service, spec: JobSpec, actor: User, *, again: bool, even_if_never: bool) -> int | None:
    """Creates a revision with the spec and makes it the current one. Returns the revision's number.

    Unless `again`, returns None, and creates no revision, if the current revision has an equal spec.

    `even_if_never`: whether to accept a spec with which no replica could ever run. If False, raises Refused for such a
    spec.
    """
    spec = spec.model_copy(update={"name": service.name})
    if not again and service.current is not None and JobSpec.stored(service.current.spec) == spec:
        return None
    _require_member(actor, service.tenant)
    _check(spec, service.tenant, service.cluster, actor, even_if_never=even_if_never)
    now = now_from_database()
    judge(service, at=now)
    give_up(service, actor=actor, at=now)
    revision = _revise(service, spec, actor)
    note(service, Kind.UPDATED, user=actor.get_username(), revision=revision.number)
    return revision.number


def _revise(service: Service, spec: JobSpec, author: User) -> ServiceRevision:
    last = service.revisions.aggregate(last=Max("number"))["last"] or 0
    revision = ServiceRevision.objects.create(
        service=service, number=last + 1, spec=spec.to_dict(), author=author
    )
    make_current(service, revision, at=now_from_database())
    return revision


def _check(spec: JobSpec, tenant: Tenant, cluster: Cluster, owner: User, *, even_if_never: bool) -> None:
    problems = spec.problems_of_endless()
    if not NAME.fullmatch(spec.name) or spec.name.startswith("fairlot-"):
        problems["name"] = (
            "must have up to 40 lower-case letters, digits and hyphens, begin with a letter, and not begin with"
            " fairlot-, because a service's name is also a host name"
        )
    if spec.port is None:
        problems["port"] = "must be set, because a service answers requests at this port"
    if problems:
        raise SpecError(problems)
    generation_ids = check_later(actor=owner, tenant=tenant, cluster=cluster, spec=spec)
    never = (
        ""
        if even_if_never
        else why_never(actor=owner, tenant=tenant, cluster=cluster, spec=spec, generation_ids=generation_ids)
    )
    if never:
        raise Refused(never, field="even_if_never")


def _check_rules(service: Service) -> None:
    """Raises SpecError, with each invalid field, unless the service's rules are whole numbers within their bounds.

    Also raises SpecError if a rollout could replace no replica, because `max_surge` and `max_unavailable` are both 0.
    """
    problems = {}
    for name, (least, most) in LIMITS.items():
        value = getattr(service, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            problems[name] = f"must be a whole number from {least} to {most}"
    if not problems and not service.max_surge and not service.max_unavailable:
        problems["max_surge"] = (
            "must be 1 or more while max_unavailable is 0, because otherwise no replica could be replaced"
        )
    if problems:
        raise SpecError(problems)


def _tell(service: Service, actor: User, verb: str, **facts: Any) -> None:
    audit.record(actor=actor, verb=verb, target=service, tenant=service.tenant, **facts)
    pubsub.publish(f"jobs:{service.tenant_id}")
    wake_service(service.pk)
