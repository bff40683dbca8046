"""Runs due schedules. For each due time, one transaction submits the job or stores the reason why it was not submitted.

Any number of workers may do this simultaneously: a worker skips schedules that another worker has locked, and the
database accepts only one run for each due time.
"""

from __future__ import annotations

from django.db import transaction

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.core import pubsub
from scheduling.core.locks import stay_attached
from scheduling.core.run_texts import EARLIER_RUN
from scheduling.models import Cluster, Schedule, ScheduleRun
from scheduling.models.event_codes import Delay, RunNote
from scheduling.schedules.actions import lock_changeable
from scheduling.schedules.due_runs import handle_next, job_in_the_way, submit
from scheduling.schedules.pausing import pause
from scheduling.timetable import TimetableError

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
    if in_the_way := job_in_the_way(schedule):
        raise Refused(EARLIER_RUN.format(job=in_the_way.pk))
    job = submit(schedule, request_key, asked_by=actor)
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
    handle_next(schedule, timetable, now)
    schedule.save(update_fields=["next_due_at", "late_because", "refusals"])
    _changed(schedule)
    return True


def _changed(schedule: Schedule) -> None:
    pubsub.publish(f"jobs:{schedule.tenant_id}")
