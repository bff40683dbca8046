"""Runs due schedules. For each due time, one transaction submits the job or stores the reason why it was not submitted.

Any number of workers may do this simultaneously: a worker skips schedules that another worker has locked, and the
database accepts only one run for each due time.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from scheduling.core import pubsub
from scheduling.core.locks import lock_schedules, stay_attached
from scheduling.core.run_texts import EARLIER_RUN
from scheduling.jobs.actions import cancel_within
from scheduling.jobs.submitting import submit_stored
from scheduling.models import Cluster, Job, Schedule, ScheduleRun
from scheduling.models.event_codes import AfterMissed, Delay, EventCode, Message, RunNote
from scheduling.schedules.actions import lock_changeable, pause
from scheduling.spec.job_spec import SpecError
from scheduling.timetable import TimetableError
from scheduling.timetable.missed_runs import Step, next_step

MOST_REFUSALS = 5  # consecutive refused runs after which the schedule is paused, so that somebody looks at it
MOST_A_TICK = 500


@transaction.atomic(durable=True)
def due_schedules() -> list[int]:
    """Returns the ids of up to MOST_A_TICK due schedules, beginning with the one that is most overdue.

    For due schedules of detached clusters, stores the reason why their runs will be late.
    """
    now = now_from_database()
    waiting = Schedule.objects.kept().filter(next_due_at__lte=now, cluster__detached_at__isnull=False)
    waiting.filter(late_because="").update(late_because=Delay.DETACHED)
    due = Schedule.objects.due(now).order_by("next_due_at", "id")
    return list(due.values_list("pk", flat=True)[:MOST_A_TICK])


def run_schedule(*, schedule_id: int) -> int:
    """Starts a run, or records a missed run, for each due time of one schedule that has passed. Returns the number of
    transactions.

    Each transaction handles one or more due times.
    """
    done = 0
    while _next_due(schedule_id):
        done += 1
    return done


@transaction.atomic(durable=True)
def run_schedule_now(*, actor: User, schedule: Schedule, request_key: str | None = None) -> ScheduleRun:
    """Starts a run now, outside the timetable, even if the schedule is paused. The job belongs to the schedule's owner.

    If `request_key` was used before, returns the earlier run. Raises Refused if an earlier run has not ended and the
    schedule forbids overlap. Raises other errors like `submit_job`.
    """
    schedule = lock_changeable(actor, schedule)
    if request_key:
        request_key = f"run {schedule.pk} {request_key}"[:80]
        if earlier := schedule.runs.filter(job__request_key=request_key).first():
            return earlier
    if in_the_way := _job_in_the_way(schedule):
        raise Refused(EARLIER_RUN.format(job=in_the_way.pk))
    job = _submit(schedule, request_key, asked_by=actor)
    now = now_from_database()
    _changed(schedule)
    return ScheduleRun.objects.create(
        schedule=schedule,
        due_at=now,
        due_from=now,
        asked_by=actor,
        outcome=ScheduleRun.Outcome.SUBMITTED,
        job=job,
        note=RunNote.REQUESTED,
        detail={"user": actor.get_username()},
    )


@transaction.atomic(durable=True)
def _next_due(schedule_id: int) -> bool:
    """Handles the next due times of a schedule: starts a run, records runs as missed, or does both. Returns False if it
    did neither.

    Does nothing if the schedule is not due, is locked by another worker, or belongs to a detached cluster. Pauses the
    schedule if its stored timetable can no longer be read.
    """
    now = now_from_database()
    locked = Schedule.objects.due(now).select_for_update(skip_locked=True, of=("self",))
    schedule = locked.select_related("tenant", "owner", "cluster").filter(pk=schedule_id).first()
    if schedule is None or schedule.next_due_at is None:
        return False
    stay_attached(schedule.cluster_id)
    if not Cluster.objects.attached().filter(pk=schedule.cluster_id).exists():
        return False  # the cluster was detached just now: the due time waits
    try:
        timetable = schedule.timetable
    except TimetableError as error:  # for example, the time zone no longer exists
        pause(None, schedule, f"The timetable of the schedule can no longer be read: {error.message}")
        return False
    step = next_step(timetable, schedule.next_due_at, now, policy=schedule.missed, window=schedule.window)
    if step.missed:
        _write_missed(schedule, step)
    if step.runs:
        _run(schedule, step.runs, is_late=step.is_late)
    schedule.next_due_at = timetable.after(step.last)
    if schedule.next_due_at is None or schedule.next_due_at > now:
        schedule.late_because = ""
    schedule.save(update_fields=["next_due_at", "late_because", "refusals"])
    _changed(schedule)
    return True


def _write_missed(schedule: Schedule, step: Step) -> None:
    first, last = step.missed or (step.last, step.last)
    if schedule.missed == Schedule.Missed.SKIP:
        then = AfterMissed.SKIPPED
    elif schedule.missed == Schedule.Missed.ONCE and step.runs:
        then = AfterMissed.LATEST
    else:
        then = AfterMissed.TOO_OLD
    ScheduleRun.objects.create(
        schedule=schedule,
        due_from=first,
        due_at=last,
        outcome=ScheduleRun.Outcome.SKIPPED,
        note=RunNote.MISSED,
        detail={"because": schedule.delay, "then": then},
    )


def _run(schedule: Schedule, due: datetime, *, is_late: bool) -> ScheduleRun:
    """Submits the job for a due time, or records the reason why no job was submitted. Returns the run.

    `is_late` is True if the run starts later than planned; the run's note then says why. After MOST_REFUSALS refused
    runs in a row, pauses the schedule.
    """
    run = ScheduleRun(schedule=schedule, due_at=due, due_from=due)
    if job := _job_in_the_way(schedule):
        run.outcome, run.note, run.detail = ScheduleRun.Outcome.SKIPPED, RunNote.EARLIER_RUN, {"job": job.pk}
    else:
        try:
            with transaction.atomic():
                run.job = _submit(schedule)
        except (NotAllowed, Refused, SpecError) as error:
            run.outcome, run.text = ScheduleRun.Outcome.REFUSED, str(error)
            # A missing permission does not count as a refusal: the schedule continues once its owner may submit again
            # or somebody takes it over.
            schedule.refusals += not isinstance(error, NotAllowed)
        else:
            run.outcome = ScheduleRun.Outcome.SUBMITTED
            if is_late:
                run.note = RunNote.LATE
                run.detail = {"because": schedule.delay}
            schedule.refusals = 0
    run.save(force_insert=True)
    if schedule.refusals >= MOST_REFUSALS:
        pause(
            None,
            schedule,
            f"Paused automatically after {schedule.refusals} consecutive refused runs: {run.text}",
        )
    return run


def _job_in_the_way(schedule: Schedule) -> Job | None:
    """Returns a job of an earlier run that has not ended, if the schedule forbids overlap. Returns None if nothing
    prevents a new run."""
    return schedule.jobs_at_work().first() if schedule.overlap == Schedule.Overlap.FORBID else None


def _submit(schedule: Schedule, request_key: str | None = None, *, asked_by: User | None = None) -> Job:
    """Submits the schedule's job with the rights of its owner and the limits of the team.

    If the schedule's policy for overlap is REPLACE, first cancels earlier runs that have not ended. `asked_by` is the
    user who started the run by hand. If a job was submitted with `request_key` before, returns that job. Raises Refused
    if the job can never run.
    """
    owner = schedule.owner
    if schedule.overlap == Schedule.Overlap.REPLACE:
        instead = Message.of(EventCode.NEXT_RUN, schedule=schedule.name)
        earlier = schedule.jobs_at_work()
        # Also other clusters, because the schedule may have moved since.
        lock_schedules(earlier.values_list("cluster_id", flat=True))
        for job in earlier.order_by("cluster", "pk"):
            cancel_within(actor=owner, job=job, why=instead)
    return submit_stored(
        actor=owner,
        tenant=schedule.tenant,
        cluster=schedule.cluster,
        data=schedule.spec,
        request_key=request_key,
        even_if_never=False,
        why=Message.of(
            EventCode.SUBMITTED_BY_SCHEDULE,
            schedule=schedule.name,
            user=asked_by.get_username() if asked_by else None,
        ),
    )


def _changed(schedule: Schedule) -> None:
    pubsub.publish(f"jobs:{schedule.tenant_id}")
