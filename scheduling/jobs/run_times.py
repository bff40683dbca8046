"""Whether a job will have ended by its deadline, by the run time that its owner expects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduling.models import Job, JobForecast, Lease
from scheduling.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class RunTime:
    """What is known of the run time of a job."""

    left: timedelta | None  # of the expected run time; None: nothing, or its owner expects none
    over: timedelta | None  # by how much it has run longer than expected; None: not yet
    # If it is not stopped again; None: nobody knows when it starts, or how long it still runs.
    ends_by: datetime | None
    deadline: datetime | None
    is_late: bool  # it ended after its deadline, or will as far as is known


def run_time_of_spec(spec: JobSpec, now: datetime) -> dict[str, Any]:
    """Returns what a job that is submitted `now` says of its run time, by the job's fields."""
    expected, deadline = spec.expected_hours, spec.deadline_hours
    return {
        "expected_seconds": None if expected is None else expected * 3600,
        "deadline": None if deadline is None else now + timedelta(hours=deadline),
    }


def run_time_of(
    job: Job, lease: Lease | None, *, forecast: JobForecast | None, now: datetime
) -> RunTime | None:
    """Returns what is known of a job with an expected run time or a deadline; None of others.

    `lease` is what it holds now, `forecast` tells when it is expected to start if it waits.
    """
    if job.expected_seconds is None and job.deadline is None:
        return None
    if job.has_ended:
        is_late = job.deadline is not None and job.ended_at is not None and job.ended_at > job.deadline
        return RunTime(None, None, None, job.deadline, is_late)
    waits, starts_by, earliest = job.state in Job.WAITING, None, now
    if waits and forecast is not None:
        starts_by = forecast.starts_by
        earliest = max(starts_by or forecast.looked_until, now)
    left = over = ends = None
    if job.expected_seconds is not None:
        had = job.held_for
        if not waits and lease is not None and lease.held_from is not None:
            had += now - lease.held_from
        more = timedelta(seconds=job.expected_seconds) - had
        left, over = (more, None) if more > timedelta(0) else (None, -more)
        if left is not None and (starts_by is not None or not waits):
            ends = earliest + left
    # Whoever waits without a known start is late once even the earliest possible one is too late.
    is_late = job.deadline is not None and earliest + (left or timedelta(0)) > job.deadline
    return RunTime(left, over, ends, job.deadline, is_late)
