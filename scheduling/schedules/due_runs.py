"""What happens at due times of a schedule: submits jobs, and writes down which runs were submitted, refused or missed.

All functions work within the transaction of a caller that has locked the schedule's row.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from scheduling.core.locks import lock_schedules
from scheduling.jobs.actions import cancel_within
from scheduling.jobs.submitting import submit_stored
from scheduling.models import Job, Schedule, ScheduleRun
from scheduling.models.event_codes import AfterMissed, Delay, EventCode, Message, RunNote
from scheduling.schedules.pausing import pause
from scheduling.spec.job_spec import SpecError
from scheduling.timetable import Timetable, TimetableError
from scheduling.timetable.missed_runs import Step, next_step

MOST_REFUSALS = 5  # consecutive refused runs after which the schedule is paused, so that somebody looks at it


def handle_next(schedule: Schedule, timetable: Timetable, now: datetime) -> None:
    """Handles the next due times of a due schedule: starts a run, records runs as missed, or does both. Sets the time
    of the next one; the caller saves the schedule."""
    assert schedule.next_due_at is not None  # noqa: S101 - the schedule is due
    step = next_step(timetable, schedule.next_due_at, now, policy=schedule.missed, window=schedule.window)
    if step.missed:
        _write_missed(schedule, step)
    if step.runs:
        _run(schedule, step.runs, is_late=step.is_late)
    schedule.next_due_at = timetable.after(step.last)
    if schedule.next_due_at is None or schedule.next_due_at > now:
        schedule.late_because = ""


def settle(schedule: Schedule, now: datetime) -> None:
    """Handles all due times that have passed, before the schedule gets another timetable; the caller saves it.

    Runs that are due start as if the worker had come first. A paused schedule starts none: its due times are recorded
    as missed. Does nothing if the stored timetable can no longer be read.
    """
    try:
        timetable = schedule.timetable
    except TimetableError:
        return
    while schedule.paused_at is None and schedule.next_due_at and schedule.next_due_at <= now:
        handle_next(schedule, timetable, now)
    if schedule.next_due_at and schedule.next_due_at <= now:
        ScheduleRun.objects.create(
            schedule=schedule,
            due_from=schedule.next_due_at,
            due_at=timetable.latest(schedule.next_due_at, now),
            outcome=ScheduleRun.Outcome.SKIPPED,
            note=RunNote.MISSED,
            detail={"because": Delay.PAUSED, "then": AfterMissed.CHANGED},
        )


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
    if job := job_in_the_way(schedule):
        run.outcome, run.note, run.detail = ScheduleRun.Outcome.SKIPPED, RunNote.EARLIER_RUN, {"job": job.pk}
    else:
        try:
            with transaction.atomic():
                run.job = submit(schedule)
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


def job_in_the_way(schedule: Schedule) -> Job | None:
    """Returns a job of an earlier run that has not ended, if the schedule forbids overlap. Returns None if nothing
    prevents a new run."""
    return schedule.jobs_at_work().first() if schedule.overlap == Schedule.Overlap.FORBID else None


def submit(schedule: Schedule, request_key: str | None = None, *, asked_by: User | None = None) -> Job:
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
