"""Announces events of jobs and sweeps to the users who want to know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import CharField, Exists, Min, OuterRef, Q, Subquery, Value
from django.db.models.functions import Cast, Concat, Now, TruncDay

from accounting.core.clock import now_from_database
from accounting.core.wording import counted
from accounting.models import Membership, NotificationEvent, NotificationRule
from accounting.models.notifications import OF_RUNS, USUAL_WAIT, WAITS, EventKind
from accounting.notifications.events import announce, announce_all
from scheduling.core.event_texts import minutes_or_hours
from scheduling.models import Job, Lease, Schedule, ScheduleRun, Service, ServiceRevision, Sweep
from scheduling.models.event_codes import Cause

# A job that loses its GPUs to other jobs gets them back at its next turn.
IN_TURNS = frozenset({Cause.CLAIMED, Cause.OWN_JOBS})
MOST_WAITS = 500  # events in one transaction; the next run of the task continues


def quoted(work: Job | Schedule | Service | Sweep) -> str:
    """Returns a name as a sentence has it, because names are words too, such as "never opens"."""
    return f"“{work.name}”"


def events_of_ends(ended: Sequence[tuple[Job, str]]) -> list[NotificationEvent]:
    """Returns the unsaved events that say how jobs ended, without those of replicas, which their services replace.

    `ended`: pairs of a job and the sentence in its history. Reads the schedules of jobs that are runs of one, in one
    query, and otherwise only columns of the jobs themselves.
    """
    told = [(job, said) for job, said in ended if job.kind != Job.Kind.REPLICA]
    runs = _scheduled_runs([job.pk for job, _ in told if not (job.sweep_id or job.pipeline_id)])
    return [_event_of_end(job, said, runs.get(job.pk)) for job, said in told]


def _scheduled_runs(jobs: list[int]) -> dict[int, ScheduleRun]:
    """Returns the run of a schedule for which each job was submitted, by job id.

    `worked`: the id of the schedule's last run of this day (UTC) whose job succeeded, or None.
    """
    if not jobs:
        return {}
    today = ScheduleRun.objects.filter(
        schedule=OuterRef("schedule"), due_at__gte=TruncDay(Now(), tzinfo=UTC), job__state=Job.State.SUCCEEDED
    )
    runs = ScheduleRun.objects.filter(job__in=jobs).select_related("schedule")
    found = runs.annotate(worked=Subquery(today.order_by("-due_at", "-pk").values("pk")[:1]))
    return {run.job_id: run for run in found if run.job_id is not None}


def _event_of_end(job: Job, said: str, run: ScheduleRun | None) -> NotificationEvent:
    """Returns the unsaved event that says how a job ended, as a run of a schedule if it is one.

    A schedule whose runs fail one after another is announced once a day, because its next runs say nothing new.
    """
    is_failed = job.state == Job.State.FAILED
    how = "failed" if is_failed else job.get_state_display().lower()
    key, title, path = f"job:{job.pk}:ended", f"{quoted(job)} {how}", page_of(job)
    if run is not None:
        schedule = run.schedule
        of = f"of the schedule {quoted(schedule)}"
        title = f"A run {of} {how}" if job.name == schedule.name else f"{quoted(job)}, a run {of}, {how}"
        if is_failed and job.ended_at:
            key = f"schedule:{schedule.pk}:failed:{job.ended_at.astimezone(UTC).date()}:{run.worked or ''}"  # type: ignore[attr-defined]  # annotated
            path = f"/schedules/{schedule.pk}/"
            said = (
                f"{said.rstrip('.')} (job {job.pk}). If the next runs fail too, this is announced once a day."
            )
    return NotificationEvent.about(
        EventKind.JOB_FAILED if is_failed else EventKind.JOB_ENDED,
        key,
        tenant_id=job.tenant_id,
        concerns=[] if job.sweep_id else [job.owner_id],
        actor_name=str(job.end_detail.get("user") or "") if job.end_code else "",
        job_id=job.pk,
        is_part=job.sweep_id is not None,
        title=title,
        text=said,
        path=path,
    )


@dataclass(frozen=True)
class Turn:
    """A start of a job, or a loss of its GPUs.

    `said`: the sentence in its history. `lost_by`: why it lost its GPUs; None for a start.
    """

    job: Job
    epoch: int  # the number of the attempt
    at: datetime
    said: str
    lost_by: str | None = None


def events_of_turns(turns: Sequence[Turn]) -> list[NotificationEvent]:
    """Returns the unsaved events that say that jobs started, were suspended or go on, as far as a rule asks for them.

    A job that takes turns with others is suspended again and again: that is announced once a day (UTC), and so is that
    it goes on. All other suspensions are announced.
    """
    wanted = _wanted_turns(turns)
    begun = Lease.objects.filter(job__in=[one.job.pk for one in wanted], running_from__isnull=False)
    first: dict[int, int] = {}
    if any(one.lost_by is None for one in wanted):
        first = dict(begun.order_by().values_list("job").annotate(Min("epoch")))
    return [_event_of_turn(one, is_first=one.epoch <= first.get(one.job.pk, one.epoch)) for one in wanted]


def _wanted_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Returns the turns of those jobs about which a rule asks for them."""
    turns = [one for one in turns if one.job.kind != Job.Kind.REPLICA]
    if not turns:
        return []
    jobs, owners = {one.job.pk for one in turns}, {one.job.owner_id for one in turns}
    rules = NotificationRule.objects.filter(kinds__overlap=[str(kind) for kind in OF_RUNS])
    about = NotificationRule.About
    rules = rules.filter(
        Q(about=about.TEAM) | Q(about=about.JOB, job_id__in=jobs) | Q(about=about.ME, user__in=owners)
    )
    asked = set(rules.values_list("about", "job_id", "user_id"))
    if any(kind == about.TEAM for kind, _, _ in asked):
        return turns
    followed = {job for kind, job, _ in asked if kind == about.JOB}
    people = {user for kind, _, user in asked if kind == about.ME}
    return [one for one in turns if one.job.pk in followed or one.job.owner_id in people]


def _event_of_turn(turn: Turn, *, is_first: bool) -> NotificationEvent:
    job, day = turn.job, turn.at.astimezone(UTC).date()
    if turn.lost_by is not None:
        kind, what = EventKind.JOB_SUSPENDED, "was suspended"
        key = f"suspended:{day if turn.lost_by in IN_TURNS else turn.epoch}"
    elif is_first:
        kind, what, key = EventKind.JOB_STARTED, "started", "started"
    else:
        kind, what, key = EventKind.JOB_SUSPENDED, "goes on", f"goes_on:{day}"
    return NotificationEvent.about(
        kind,
        f"job:{job.pk}:{key}",
        tenant_id=job.tenant_id,
        concerns=[] if job.sweep_id else [job.owner_id],
        job_id=job.pk,
        is_part=job.sweep_id is not None,
        title=f"{quoted(job)} {what}",
        text=turn.said,
        path=page_of(job),
    )


def announce_warning(
    job: Job, what: str, said: str, *, topic: str, at: datetime | None = None, to_managers: bool = True
) -> None:
    """Announces a warning to the owner of a job and, unless `to_managers` is False, to the managers of its team.

    `what`: the first words of the title. `topic`: names the warning among those of the job. `at`: the time of a warning
    that may be repeated; a warning without a time is announced once.

    Replicas come and go, so the warning of a replica is one of its service: once a day for each topic, or once for each
    revision if it has no time.
    """
    service = job.service
    if service is not None:
        owner_id, name, path = service.owner_id, quoted(service), f"/services/{service.pk}/"
        key = f"service:{service.pk}:{topic}:{at.date() if at else job.revision_id}"
        who = f"The replica {quoted(job)} of the service {quoted(service)} in {job.tenant.name}"
    else:
        owner_id, name, path = job.owner_id, quoted(job), page_of(job)
        key = f"job:{job.pk}:{topic}:{at.isoformat()}" if at else f"job:{job.pk}:{topic}"
        who = f"The job {quoted(job)} of {job.owner.get_username()} in {job.tenant.name}"
    concerned = {owner_id}
    if to_managers:
        managers = Membership.objects.filter(tenant__in=job.tenant.lineage, role=Membership.Role.MANAGER)
        concerned |= set(managers.values_list("user_id", flat=True))
    announce(
        EventKind.JOB_WARNED,
        key,
        tenant=job.tenant,
        concerns=sorted(concerned),
        job_id=None if service else job.pk,
        title=f"{what}: {name}",
        text=f"{who} is running. {said}.",
        path=path,
    )


def announce_to_owner(job: Job, what: str, said: str, *, key: str) -> None:
    """Announces a warning to the owner of a job alone.

    `what`: the first words of the title. `key`: names the warning among those of the job.
    """
    announce(
        EventKind.JOB_WARNED,
        f"job:{job.pk}:{key}",
        tenant=job.tenant,
        concerns=[job.owner_id],
        job_id=job.pk,
        title=f"{what}: {quoted(job)}",
        text=f"{said}.",
        path=page_of(job),
    )


def announce_end_of_sweep(sweep: Sweep) -> None:
    """Announces that all members of a sweep have ended. If failed members run again, their end is another event."""
    counts = [f"{count} {name}" for name, count in sorted(sweep.counts.items()) if count]
    announce(
        EventKind.SWEEP_ENDED,
        f"sweep:{sweep.pk}:{sweep.ended_at and sweep.ended_at.isoformat()}",
        tenant=sweep.tenant,
        concerns=[sweep.owner_id],
        title=f"Sweep {quoted(sweep)} {sweep.get_state_display().lower()}",
        text=f"All members of the sweep have ended: {', '.join(counts)}." if counts else "",
        path=f"/sweeps/{sweep.pk}/",
    )


def announce_failed_revision(service: Service, revision: ServiceRevision, said: str, *, rollout: int) -> None:
    """Announces to the owner of a service and to the author of its revision that the rollout of the revision failed.

    `said`: why, and what follows. `rollout`: the number of the rollout. Each rollout is announced once.
    """
    title = f"Revision {revision.number} of the service {quoted(service)} failed"
    _announce_failure(service, revision, f"failed:{rollout}", title=title, text=f"{said}.")


def announce_crash_loop(service: Service, revision: ServiceRevision, said: str, *, at: datetime) -> None:
    """Announces to the owner of a service and to the author of its revision that replicas end again and again.

    `said`: which, and how they end. `at`: the time, because this is announced again on later days.
    """
    title = f"Replicas of the service {quoted(service)} end again and again"
    text = f"{said}. Fairlot goes on replacing it, every five minutes at most."
    _announce_failure(service, revision, f"crashes:{at.isoformat()}", title=title, text=text)


def _announce_failure(
    service: Service, revision: ServiceRevision, key: str, *, title: str, text: str
) -> None:
    """Announces a failure to the owner of a service and to the author of its revision, once for each `key`."""
    announce(
        EventKind.SERVICE_FAILED,
        f"service:{service.pk}:{key}",
        tenant=service.tenant,
        concerns=sorted({service.owner_id, revision.author_id}),
        title=title,
        text=text,
        path=f"/services/{service.pk}/",
    )


def announce_waits() -> int:
    """Announces the jobs that have waited longer than some rule asks for. Returns their number.

    A job that has never run waits from its submit on; any other job from the time at which it lost its GPUs. Each
    attempt has one event for each waiting time, even if this function runs twice at the same time.
    """
    asked = set(
        NotificationRule.objects.filter(kinds__contains=[EventKind.JOB_WAITING]).values_list(
            "wait_minutes", flat=True
        )
    )
    return sum(_announce_waits(minutes) for minutes in WAITS if minutes in asked | {USUAL_WAIT})


@transaction.atomic(durable=True)
def _announce_waits(minutes: int) -> int:
    now = now_from_database()
    text = CharField()
    key = Concat(Value("job:"), Cast("pk", text), Value(":waits:"), Cast("epoch", text), Value(f":{minutes}"))
    never_ran = Q(first_started_at=None, created_at__lte=now - timedelta(minutes=minutes))
    stopped = Q(first_started_at__isnull=False, state_since__lte=now - timedelta(minutes=minutes))
    jobs = Job.objects.waiting().exclude(kind=Job.Kind.REPLICA).filter(never_ran | stopped).annotate(key=key)
    known = NotificationEvent.objects.filter(key=OuterRef("key"))
    found = list(jobs.filter(~Exists(known)).defer("spec").order_by("pk")[:MOST_WAITS])
    announce_all(_event_of_wait(job, minutes) for job in found)
    return len(found)


def _event_of_wait(job: Job, minutes: int) -> NotificationEvent:
    return NotificationEvent.about(
        EventKind.JOB_WAITING,
        f"job:{job.pk}:waits:{job.epoch}:{minutes}",
        tenant_id=job.tenant_id,
        concerns=[] if job.sweep_id else [job.owner_id],
        job_id=job.pk,
        is_part=job.sweep_id is not None,
        waited_minutes=minutes,
        title=f"{quoted(job)} has waited for {minutes_or_hours(minutes * 60)}",
        text=f"The job waits for {counted(job.gpus, 'GPU')}. Its page says why, and what would help.",
        path=page_of(job),
    )


def page_of(job: Job) -> str:
    return f"/sessions/{job.pk}/" if job.kind == Job.Kind.SESSION else f"/jobs/{job.pk}/"
