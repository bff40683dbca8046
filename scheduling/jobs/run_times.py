"""Predicts whether a job ends by its deadline, from the run time that its owner expects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduling.models import Job, JobForecast, Lease
from scheduling.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class RunTime:
    """Says whether a job exceeds the run time that its owner expected, and whether it ends by its deadline."""

    left: timedelta | None  # remaining expected run time; None: used up, or no run time is expected
    over: timedelta | None  # time beyond the expected run time; None: not exceeded
    # The expected end without further suspension; None: the start or the remaining run time is unknown.
    ends_by: datetime | None
    deadline: datetime | None
    is_late: bool  # the job ended, or is expected to end, after its deadline


def run_time_of_spec(spec: JobSpec, now: datetime) -> dict[str, Any]:
    """Returns values for the Job fields `expected_seconds`, `deadline` and `time_limit_hours`, for a spec that is
    submitted at `now`."""
    expected, deadline = spec.expected_hours, spec.deadline_hours
    return {
        "expected_seconds": None if expected is None else expected * 3600,
        "deadline": None if deadline is None else now + timedelta(hours=deadline),
        "time_limit_hours": spec.time_limit_hours,
    }


def run_time_of(
    job: Job, lease: Lease | None, *, forecast: JobForecast | None, now: datetime
) -> RunTime | None:
    """Returns the RunTime of a job; None if the job has neither an expected run time nor a deadline.

    `lease` is the job's present lease. `forecast` predicts when a waiting job starts.
    """
    if job.expected_seconds is None and job.deadline is None:
        return None
    if job.has_ended:
        is_late = job.deadline is not None and job.ended_at is not None and job.ended_at > job.deadline
        return RunTime(None, None, None, job.deadline, is_late)
    waits, starts_by, earliest = job.state in Job.WAITING, None, now
    if waits and forecast is not None:
        starts_by = forecast.starts_by
        earliest = max(starts_by or forecast.earliest, now)
    left = over = ends = None
    if job.expected_seconds is not None:
        had = job.held_for
        if not waits and lease is not None and lease.held_from is not None:
            had += now - lease.held_from
        more = timedelta(seconds=job.expected_seconds) - had
        left, over = (more, None) if more > timedelta(0) else (None, -more)
        if left is not None and (starts_by is not None or not waits):
            ends = earliest + left
    # If the start is unknown, the job is late only if even its earliest possible start is too late.
    is_late = job.deadline is not None and earliest + (left or timedelta(0)) > job.deadline
    return RunTime(left, over, ends, job.deadline, is_late)
