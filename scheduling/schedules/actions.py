"""Actions of users on schedules: create, change, pause, resume and delete them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refusals, Refused
from accounting.models import Membership, Tenant, User
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.drafts import forget_draft
from scheduling.jobs.later import check_later
from scheduling.models import Cluster, Schedule
from scheduling.models.event_codes import Delay
from scheduling.models.ownership import require_changeable
from scheduling.models.versions import require_version
from scheduling.schedules.due_runs import settle
from scheduling.schedules.pausing import note, pause
from scheduling.spec.job_spec import JobSpec
from scheduling.timetable import Timetable, TimetableError
from scheduling.timetable.normal_form import tidy

LONGEST_CATCH_UP = 30 * 86_400
TIMETABLE = ("expression", "time_zone", "begins", "ends")
POLICIES = ("missed", "catch_up_seconds", "overlap")


@dataclass(frozen=True)
class Terms:
    """The timetable of a schedule, and its policies: what happens to missed runs, and what happens if runs would
    overlap."""

    expression: str
    time_zone: str
    begins: datetime | None = None
    ends: datetime | None = None
    missed: str = Schedule.Missed.ONCE
    catch_up_seconds: int = 86_400
    overlap: str = Schedule.Overlap.FORBID

    def check(self, stored: Schedule | None = None) -> Timetable:
        """Returns the timetable. Raises Refused, with the name of each invalid field, if a value is invalid.

        A timetable equal to that of `stored` is accepted even if it breaks rules that were added later.
        """
        refusals = Refusals()
        for field, choices in (("missed", Schedule.Missed), ("overlap", Schedule.Overlap)):
            with refusals.kept():
                if getattr(self, field) not in choices.values:
                    raise Refused(f"Accepted: {', '.join(choices.values)}.", field)
        with refusals.kept():
            if not 0 <= self.catch_up_seconds <= LONGEST_CATCH_UP:
                raise Refused("The catch-up window must be from 0 to 30 days.", "catch_up_seconds")
        table: Timetable | None = None
        with refusals.kept():
            table = self._table(stored)
        refusals.raise_any()
        assert table is not None  # noqa: S101 - otherwise there is a refusal
        return table

    def _table(self, stored: Schedule | None) -> Timetable:
        try:
            if stored and self.has_timetable_of(stored):
                return stored.timetable
            return Timetable.read(self.expression, self.time_zone, self.begins, self.ends)
        except TimetableError as error:
            raise Refused(error.message, error.field) from None

    def has_timetable_of(self, stored: Schedule) -> bool:
        """Returns whether the timetable equals that of `stored`.

        Ignores spaces, upper and lower case, and whether an expression is written as a macro such as @daily.
        """
        own, others = ([getattr(one, name) for name in TIMETABLE] for one in (self, stored))
        return [tidy(own[0]), *own[1:]] == [tidy(others[0]), *others[1:]]


def may_schedule(actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> None:
    """Raises an error if the actor cannot create a schedule with this spec.

    Raises NotAllowed unless the actor is a member of the tenant. Raises Refused or SpecError if the tenant or the
    cluster does not accept such a job.
    """
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may schedule jobs there.")
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it accepts no new jobs.", "tenant")
    if cluster.detached_at:
        raise Refused(f"{cluster.name} is detached; it accepts no jobs.", "cluster")
    check_later(actor=actor, tenant=tenant, cluster=cluster, spec=spec)


@fetches_code
@transaction.atomic(durable=True)
def create_schedule(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    terms: Terms,
    paused: bool = False,
    request_key: str | None = None,
) -> Schedule:
    """Creates a schedule owned by `actor` in `tenant`. If `request_key` was used before, returns the earlier schedule.

    The first run is at the first due time after now; a schedule that is created paused starts none until it is resumed.
    Raises Refused, NotAllowed and SpecError like `may_schedule` and
    `Terms.check`.
    """
    may_schedule(actor, tenant, cluster, spec)
    timetable = terms.check()
    forget_draft(actor, request_key)
    written = asdict(terms) | {"expression": timetable.expression}
    now = now_from_database()
    schedule = Schedule(
        tenant=tenant,
        owner=actor,
        cluster=cluster,
        name=spec.name,
        spec=spec.to_dict(),
        request_key=request_key,
        next_due_at=_first_due(timetable, now),
        paused_at=now if paused else None,
        paused_reason=f"Created paused by {actor.get_username()}" if paused else "",
        **written,
    )
    try:
        with transaction.atomic():
            schedule.save(force_insert=True)
    except IntegrityError:
        if request_key is None:
            raise
        return Schedule.objects.get(owner=actor, request_key=request_key)
    note(actor, schedule, verb="schedule.create", after=written | ({"paused": True} if paused else {}))
    return schedule


@fetches_code
@transaction.atomic(durable=True)
def change_schedule(
    *,
    actor: User,
    schedule: Schedule,
    cluster: Cluster,
    spec: JobSpec,
    terms: Terms,
    seen: Collection[str] | None = None,
) -> Schedule:
    """Replaces the spec, cluster, timetable and policies of a schedule, and makes the actor its owner. The team stays.

    If the timetable changes, runs that are due under the old timetable start now, with the new spec and policies, and
    a paused schedule records them as missed (`settle`). `seen`: the versions that the caller has seen
    (require_version).
    """
    schedule = lock_changeable(actor, schedule)
    require_version(schedule, seen)
    may_schedule(actor, schedule.tenant, cluster, spec)
    timetable = terms.check(schedule)
    before = {field: getattr(schedule, field) for field in asdict(terms)}
    changes = asdict(terms) | {"expression": timetable.expression}
    before |= {"spec": schedule.spec, "cluster": schedule.cluster.name, "owner": str(schedule.owner)}
    schedule.cluster, schedule.spec, schedule.name = cluster, spec.to_dict(), spec.name
    schedule.refusals = 0
    # Otherwise a user could change a program that runs with another user's rights and secrets.
    if schedule.owner != actor:
        schedule.owner, schedule.request_key = actor, None
    for field in POLICIES:
        setattr(schedule, field, changes[field])
    if not terms.has_timetable_of(schedule):
        now = now_from_database()
        first = _first_due(timetable, now)
        settle(schedule, now)
        schedule.next_due_at, schedule.late_because = first, ""
    for field in TIMETABLE:
        setattr(schedule, field, changes[field])
    vars(schedule).pop("timetable", None)  # it was read from the earlier values
    schedule.save()
    after = changes | {"spec": schedule.spec, "cluster": cluster.name, "owner": str(actor)}
    differing = [field for field in after if after[field] != before[field]]
    note(
        actor,
        schedule,
        verb="schedule.change",
        before={field: before[field] for field in differing},
        after={field: after[field] for field in differing},
    )
    return schedule


@transaction.atomic(durable=True)
def pause_schedule(*, actor: User, schedule: Schedule, reason: str = "") -> Schedule:
    """Pauses the schedule, so that it starts no runs until it is resumed. Does nothing if it is paused already."""
    schedule = lock_changeable(actor, schedule)
    if schedule.paused_at is None:
        by = f"Paused by {actor.get_username()}"
        pause(actor, schedule, f"{by}: {reason.strip()[:200]}" if reason.strip() else by)
    return schedule


@transaction.atomic(durable=True)
def resume_schedule(*, actor: User, schedule: Schedule) -> Schedule:
    """Resumes a paused schedule. Does nothing if the schedule is not paused.

    The schedule's policy for missed runs decides which missed runs still start.
    """
    schedule = lock_changeable(actor, schedule)
    if schedule.paused_at is not None:
        if schedule.next_due_at and schedule.next_due_at <= now_from_database():
            schedule.late_because = Delay.PAUSED
        schedule.paused_at, schedule.paused_reason, schedule.refusals = None, "", 0
        schedule.save(update_fields=["paused_at", "paused_reason", "late_because", "refusals"])
        note(actor, schedule, verb="schedule.resume")
    return schedule


@transaction.atomic(durable=True)
def delete_schedule(*, actor: User, schedule: Schedule, seen: Collection[str] | None = None) -> None:
    """Deletes the schedule. Records of its runs are kept, and its jobs continue. Does nothing if it is deleted
    already."""
    if Schedule.objects.visible_to(actor).filter(pk=schedule.pk, deleted_at__isnull=False).exists():
        return
    schedule = lock_changeable(actor, schedule)
    require_version(schedule, seen)
    schedule.deleted_at = now_from_database()
    schedule.save(update_fields=["deleted_at"])
    note(actor, schedule, verb="schedule.delete")


def lock_changeable(actor: User, schedule: Schedule) -> Schedule:
    """Locks the schedule's row until the transaction ends, and returns the schedule.

    Raises NotAllowed if the actor may not change the schedule, and Refused if it is deleted.
    """
    locked = Schedule.objects.select_for_update(of=("self",)).select_related("tenant", "owner", "cluster")
    found = locked.get(pk=schedule.pk)
    if found.deleted_at is not None and Schedule.objects.visible_to(actor).filter(pk=found.pk).exists():
        raise Refused(f"{found.name} has been deleted.")
    require_changeable(actor, found, "change this schedule")
    return found


def _first_due(timetable: Timetable, now: datetime) -> datetime:
    due = timetable.after(now)
    if due is None:
        ended = timetable.ends is not None and timetable.ends <= now
        raise Refused("This timetable has no runs left.", "ends" if ended else "expression")
    return due
