"""Actions on the work that a user leaves behind in teams: the work waits, is cancelled, or goes to another member.

Without the permission to submit in a team, a user's work there cannot start. A round stops the user's running jobs at
the end of their quantum. The jobs wait (fairshare.Reason.OWNER_MAY_NOT) until the owner may submit again or another
member takes them over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from django.db import models, transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.memberships import lock_membership, remove_within
from accounting.actions.users import deactivate_within, lock_with_admins
from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import Membership, Tenant, User
from accounting.models.tenants import members_among
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_pipeline, wake_service, wake_sweep, want_rounds
from scheduling.core.locks import lock_schedules
from scheduling.jobs.actions import cancel_waiting_within, cancel_within
from scheduling.jobs.explain import why_owner_may_not
from scheduling.leases.actions import bill
from scheduling.models import (
    Cluster,
    Job,
    JobEvent,
    JobSecret,
    Lease,
    Pipeline,
    PipelineStep,
    Schedule,
    Service,
    ServiceRevision,
    Sweep,
)
from scheduling.models.event_codes import EventCode, Message, ServiceEventKind
from scheduling.pipelines.actions import cancel as cancel_pipeline
from scheduling.schedules.pausing import pause
from scheduling.services.replicas import note
from scheduling.spec.attachments import named_secrets
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps.actions import cancel as cancel_sweep

T = TypeVar("T", Job, Service, Schedule, Sweep, Pipeline)
L = TypeVar("L", Service, Schedule, Sweep, Pipeline)


class Fate(StrEnum):
    """What happens to the work of a user who leaves a team."""

    WAITS = "waits"
    CANCEL = "cancel"
    HAND_OVER = "hand_over"


@dataclass(frozen=True)
class Work:
    """The unfinished jobs, sweeps and pipelines, the services and the schedules of a user in some teams.

    `tenants` are the ids of these teams; None means all teams.
    """

    user: User
    tenants: Collection[int] | None = None

    @property
    def jobs(self) -> models.QuerySet[Job]:
        return self._there(Job.objects.unfinished().filter(owner=self.user))

    @property
    def services(self) -> models.QuerySet[Service]:
        """Returns the services that the user owns, and the services that run with the user's rights because the user
        wrote their current revision."""
        its = models.Q(owner=self.user) | models.Q(current__author=self.user)
        return self._there(Service.objects.kept().filter(its))

    @property
    def schedules(self) -> models.QuerySet[Schedule]:
        return self._there(Schedule.objects.kept().filter(owner=self.user))

    @property
    def sweeps(self) -> models.QuerySet[Sweep]:
        return self._there(Sweep.objects.unfinished().filter(owner=self.user))

    @property
    def pipelines(self) -> models.QuerySet[Pipeline]:
        return self._there(Pipeline.objects.unfinished().filter(owner=self.user))

    def counts(self) -> dict[str, int]:
        """Returns the number of items of each kind; the keys are "running job", "waiting job", "session", "service",
        "schedule", "sweep", "pipeline".

        Leaves out kinds without items.
        """
        training = self.jobs.filter(kind=Job.Kind.TRAINING)
        found = {
            "running job": training.filter(state__in=Job.HOLDING),
            "waiting job": training.filter(state__in=Job.WAITING),
            "session": self.jobs.filter(kind=Job.Kind.SESSION),
            "service": self.services,
            "schedule": self.schedules,
            "sweep": self.sweeps,
            "pipeline": self.pipelines,
        }
        return {kind: count for kind, rows in found.items() if (count := rows.count())}

    def _there(self, rows: models.QuerySet[T]) -> models.QuerySet[T]:
        return rows if self.tenants is None else rows.filter(tenant__in=self.tenants)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The result of handing work over: the numbers of items that changed owner, and the items that did not.

    `kept`: descriptions of the items that keep their owner because they use secrets.
    """

    jobs: int
    services: int
    schedules: int
    sweeps: int
    pipelines: int
    kept: tuple[str, ...]


def work_of_member(membership: Membership) -> Work:
    """Returns the user's work that could not run without this membership.

    This is the user's work in the membership's team and in the teams below it. Leaves out teams in which another
    membership also lets the user submit.
    """
    others = Membership.objects.filter(
        user=membership.user_id, role__in=Membership.Role.at_least(Membership.Role.MEMBER)
    ).exclude(pk=membership.pk)
    paths = list(others.values_list("tenant__path", flat=True))
    below = Tenant.objects.within(membership.tenant).values_list("pk", "path")
    return Work(membership.user, [pk for pk, path in below if not path.startswith(tuple(paths))])


def heirs(tenant: Tenant, reader: User) -> models.QuerySet[User]:
    """Returns the users who may take over work in `tenant`.

    These are the users who may submit in `tenant` through a membership in `tenant` or in one of its ancestors. Leaves
    out deactivated users, and memberships in teams that `reader` may not see.
    """
    may = Membership.objects.filter(
        tenant__in=Tenant.objects.visible_to(reader).filter(pk__in=tenant.lineage),
        role__in=Membership.Role.at_least(Membership.Role.MEMBER),
    )
    return User.objects.filter(pk__in=may.values("user"), is_active=True)


@transaction.atomic(durable=True)
def remove_member(
    *, actor: User | None, membership: Membership, fate: str = Fate.WAITS, to: User | None = None
) -> HandedOver | None:
    """Ends a membership. In the same transaction, decides about the user's work that cannot run without it.

    - `fate`: a value of Fate. WAITS leaves the work waiting, CANCEL cancels it, and HAND_OVER makes `to` its owner.
    - `to`: the new owner; needed only for HAND_OVER.

    Returns the result of handing the work over; None unless `fate` is HAND_OVER.
    """
    require(actor, "member.change", membership.tenant)
    membership = lock_membership(membership)
    done = _settle(actor, work_of_member(membership), fate, to)
    remove_within(actor=actor, membership=membership)
    return done


@transaction.atomic(durable=True)
def deactivate_user(
    *, actor: User | None, user: User, fate: str = Fate.WAITS, to: User | None = None
) -> HandedOver | None:
    """Deactivates a user. In the same transaction, decides about the user's work in all teams.

    - `fate`: a value of Fate. WAITS leaves the work waiting, CANCEL cancels it, and HAND_OVER makes `to` its owner.
    - `to`: the new owner; needed only for HAND_OVER.

    Returns the result of handing the work over; None unless `fate` is HAND_OVER.
    """
    require(actor, "user.change")
    user = lock_with_admins(user)
    done = _settle(actor, Work(user), fate, to)
    deactivate_within(actor=actor, user=user)
    return done


@transaction.atomic(durable=True)
def settle_work(
    *, actor: User | None, user: User, fate: str, to: User | None = None, tenant: Tenant | None = None
) -> HandedOver | None:
    """Cancels the work of `user`, or hands it over, without changing the memberships of `user`.

    - `fate`: a value of Fate. WAITS changes nothing, CANCEL cancels the work, and HAND_OVER makes `to` its owner.
    - `to`: the new owner; needed only for HAND_OVER.
    - `tenant`: the team in which the work of `user` is cancelled or handed over; None means all teams.

    Returns the result of handing the work over; None unless `fate` is HAND_OVER. Raises NotAllowed unless the actor
    manages the team. For all teams, the actor must be an admin.
    """
    require(actor, "user.change" if tenant is None else "member.change", tenant)
    return _settle(actor, Work(user, None if tenant is None else [tenant.pk]), fate, to)


def _settle(actor: User | None, work: Work, fate: str, to: User | None) -> HandedOver | None:
    """Leaves the work waiting (`fate` WAITS), cancels it (CANCEL), or makes `to` its owner (HAND_OVER).

    Runs within the caller's transaction. The caller has checked the actor's permission. Returns the result of handing
    the work over; None for the other fates. Raises Refused if `fate` is unknown, or if it is HAND_OVER and `to` is
    None.
    """
    match fate:
        case Fate.WAITS:
            return None
        case Fate.CANCEL:
            _cancel(actor, work)
            return None
        case Fate.HAND_OVER if to is not None:
            return hand_over_within(actor=actor, work=work, to=to)
        case Fate.HAND_OVER:
            raise Refused("Choose the new owner.", "to")
        case _:
            raise Refused(f"Accepted: {', '.join(Fate)}.", "fate")


@dataclass(frozen=True, slots=True)
class _Locked:
    """The rows of a user's work, locked until the transaction ends and read after locking."""

    jobs: list[Job]
    services: list[Service]
    schedules: list[Schedule]
    sweeps: list[Sweep]
    pipelines: list[Pipeline]

    @property
    def tenants(self) -> set[int]:
        every = (self.jobs, self.services, self.schedules, self.sweeps, self.pipelines)
        return {row.tenant_id for rows in every for row in rows}


def _lock(work: Work) -> _Locked:
    """Locks the work until the transaction ends.

    Takes locks in the same order as the controllers of services, sweeps and pipelines and as schedule runs, to prevent
    deadlocks: first their rows, then the scheduling locks of clusters, then the rows of clusters.
    """
    services, schedules, sweeps = _locked(work.services), _locked(work.schedules), _locked(work.sweeps)
    pipelines = _locked(work.pipelines)
    clusters = set(work.jobs.values_list("cluster_id", flat=True))
    lock_schedules(clusters)
    want_rounds(Cluster.objects.attached())
    # A job that is submitted meanwhile to a cluster that is not locked stays out; it waits.
    jobs = work.jobs.filter(cluster__in=clusters).select_related("tenant").order_by("pk").defer("spec")
    return _Locked(list(jobs), services, schedules, sweeps, pipelines)


def _locked(rows: models.QuerySet[L]) -> list[L]:
    ids = list(rows.values_list("pk", flat=True))
    held = rows.model._default_manager.filter(pk__in=ids).order_by("pk").select_for_update(of=("self",))
    # The rows are read again, because another transaction may have changed them before this one got the lock.
    return list(rows.filter(pk__in=[row.pk for row in held]).order_by("pk"))


def _cancel(actor: User | None, work: Work) -> None:
    """Cancels the user's jobs, sweeps, pipelines and sessions, stops the services, and pauses the schedules."""
    found = _lock(work)
    user = work.user.get_username()
    why = Message.of(EventCode.OWNER_LEAVES, user=user)
    for schedule in found.schedules:
        if schedule.paused_at is None:
            pause(actor, schedule, f"Paused because the owner {user} may no longer run jobs in the team")
    for sweep in found.sweeps:
        if sweep.state != Sweep.State.CANCELLED:
            cancel_sweep(actor, sweep)
    for pipeline in found.pipelines:
        if pipeline.state != Pipeline.State.CANCELLED:
            cancel_pipeline(actor, pipeline)
    for service in found.services:
        if service.stopped_at is not None:
            continue
        service.stopped_at = now_from_database()
        service.save(update_fields=["stopped_at"])
        note(service, ServiceEventKind.STOPPED, leaver=str(user))
        audit.record(
            actor=actor, verb="service.change", target=service, tenant=service.tenant, after={"stopped": True}
        )
        wake_service(service.pk)
    ending = [job for job in found.jobs if job.kind != Job.Kind.REPLICA]
    running = [job for job in ending if job.state not in Job.WAITING]
    waiting = [job for job in ending if job.state in Job.WAITING]
    cancel_waiting_within(actor=actor, jobs=waiting, why=why)
    for job in running:
        cancel_within(actor=actor, job=job, why=why)


def hand_over_within(*, actor: User | None, work: Work, to: User) -> HandedOver:
    """Makes `to` the owner of the work, within the caller's transaction. The ledger still shows past usage as the
    former owner's.

    Work that names secrets keeps its owner and waits. Raises Refused if `to` may not submit in one or more of the
    teams.
    """
    found = _lock(work)
    jobs, services, schedules, sweeps = found.jobs, found.services, found.schedules, found.sweeps
    now = now_from_database()
    _require_new_owner(work.user, to, found.tenants)
    # Secrets are looked up by name, for the owner, at each start. With a new owner, a program that the former owner
    # wrote could get secrets of the new owner.
    # All revisions count, because a service may be rolled back to any of them.
    revisions = ServiceRevision.objects.filter(service__in=services, author=work.user)
    stay = {one.service_id for one in revisions if _names_secrets(one.spec)}
    free_services = [one for one in services if one.pk not in stay]
    named = JobSecret.objects.filter(job__in=jobs).values_list("job_id", flat=True)
    bound = {*named, *(job.pk for job in jobs if job.service_id in stay)}
    moved = [job for job in jobs if job.pk not in bound]
    free_schedules = [one for one in schedules if not _names_secrets(one.spec)]
    by = Message.of(EventCode.HANDED_OVER, before=work.user.get_username(), user=to.get_username())
    _give_jobs(moved, to, by=by, now=now)
    for service in free_services:
        Service.objects.filter(pk=service.pk, owner=work.user).update(owner=to)
        ServiceRevision.objects.filter(service=service, author=work.user).update(author=to)
        note(service, ServiceEventKind.HANDED_OVER, **by.parameters)
        wake_service(service.pk)
    changes = {"owner": to, "request_key": None, "refusals": 0}
    Schedule.objects.filter(pk__in=[one.pk for one in free_schedules], owner=work.user).update(**changes)
    free_sweeps = [one for one in sweeps if not _names_secrets(one.spec)]
    sweep_ids = [one.pk for one in free_sweeps]
    Sweep.objects.filter(pk__in=sweep_ids, owner=work.user).update(owner=to, request_key=None)
    for pk in sweep_ids:
        wake_sweep(pk)
    free_pipelines = _give_pipelines(found.pipelines, work.user, to)
    _note(
        actor,
        work.user,
        to,
        {
            "jobs": moved,
            "services": free_services,
            "schedules": free_schedules,
            "sweeps": free_sweeps,
            "pipelines": free_pipelines,
        },
    )
    kept = [
        *(job for job in jobs if job.pk in bound),
        *(one for one in services if one not in free_services),
        *(one for one in schedules if one not in free_schedules),
        *(one for one in sweeps if one not in free_sweeps),
        *(one for one in found.pipelines if one not in free_pipelines),
    ]
    return HandedOver(
        len(moved),
        len(free_services),
        len(free_schedules),
        len(free_sweeps),
        len(free_pipelines),
        tuple(str(one) for one in kept),
    )


def _give_pipelines(pipelines: Sequence[Pipeline], user: User, to: User) -> list[Pipeline]:
    """Makes `to` the owner of the pipelines of `user` none of whose steps names secrets. Returns these pipelines."""
    steps = PipelineStep.objects.filter(pipeline__in=pipelines)
    stay = {step.pipeline_id for step in steps if _names_secrets(step.spec)}
    free = [one for one in pipelines if one.pk not in stay]
    ids = [one.pk for one in free]
    Pipeline.objects.filter(pk__in=ids, owner=user).update(owner=to, request_key=None)
    for pk in ids:
        wake_pipeline(pk)
    return free


def _require_new_owner(user: User, to: User, tenants: set[int]) -> None:
    if to == user:
        raise Refused(f"{to.get_username()} is already the owner. Choose another user.", "to")
    missing = tenants - {tenant for tenant, _ in members_among({(tenant, to.pk) for tenant in tenants})}
    if missing:
        first = Tenant.objects.filter(pk__in=missing).order_by("path")[0]
        raise Refused(f"{why_owner_may_not(to, first)}.", "to")
    if not to.is_active:
        raise Refused(f"The account of {to.get_username()} is deactivated.", "to")


def _names_secrets(spec: object) -> bool:
    try:
        return bool(named_secrets(JobSpec.stored(spec)))
    except SpecError:  # an unreadable spec may name secrets
        return True


def _give_jobs(jobs: list[Job], to: User, *, by: Message, now: datetime) -> None:
    ids = [job.pk for job in jobs]
    # Billed first, so that usage observed so far is booked to the present owner.
    held = Lease.objects.filter(job__in=ids, state__in=Lease.HOLDING, last_seen_at__isnull=False)
    by_moment: dict[datetime, list[Lease]] = defaultdict(list)
    for lease in held.select_related("job__owner", "job__tenant", "generation"):
        if lease.last_seen_at is not None:
            by_moment[lease.last_seen_at].append(lease)
    for until, leases in by_moment.items():
        bill(leases, until=until)
        update_rows(leases, ["billed_until"])
    # Without a reason, rounds treat a waiting job as new. The request key belonged to the former owner.
    Job.objects.filter(pk__in=ids).update(owner=to, request_key=None, reason=0)
    insert_rows(JobEvent.of(job, "handed_over", by, at=now) for job in jobs)
    pubsub.publish(*(f"job:{pk}" for pk in ids), *{f"jobs:{job.tenant_id}": None for job in jobs})


def _note(
    actor: User | None,
    user: User,
    to: User,
    moved: Mapping[str, Sequence[Job | Service | Schedule | Sweep | Pipeline]],
) -> None:
    """Writes one audit event for each team whose work was handed over, so that the team's managers can see it.

    `moved` has the jobs, services, schedules, sweeps and pipelines that were handed from `user` to `to`, by kind.
    """
    by_tenant: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for kind, rows in moved.items():
        for row in rows:
            by_tenant[row.tenant_id].setdefault(kind, []).append(row.pk)
    for tenant in Tenant.objects.filter(pk__in=by_tenant).order_by("path"):
        audit.record(
            actor=actor,
            verb="member.hand_over",
            target=user,
            tenant=tenant,
            before={"owner": user.get_username()},
            after={"owner": to.get_username()} | by_tenant[tenant.pk],
        )
