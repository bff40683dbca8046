"""Whether a job will have ended by its deadline, by the run time that its owner expects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduling.models import Job, Lease
from scheduling.spec import JobSpec


@dataclass(frozen=True, slots=True)
class RunTime:
    """What is left of a job that has not ended."""

    left: timedelta | None  # of the expected run time; None: its owner expects none
    # If it is not stopped again; None: nobody knows when it starts, or how long it runs.
    ends_by: datetime | None
    deadline: datetime | None
    is_late: bool  # as far as is known it ends after its deadline


def run_time_of_spec(spec: JobSpec, now: datetime) -> dict[str, Any]:
    """Returns what a job that is submitted `now` says of its run time, by the job's fields."""
    expected, deadline = spec.expected_hours, spec.deadline_hours
    return {
        "expected_seconds": None if expected is None else expected * 3600,
        "deadline": None if deadline is None else now + timedelta(hours=deadline),
    }


def run_time_of(
    job: Job, lease: Lease | None, *, starts_by: datetime | None, now: datetime
) -> RunTime | None:
    """Returns the prospects of a job with an expected run time or a deadline; None of others.

    `lease` is what it holds now, `starts_by` when it is expected to start if it waits.
    """
    if job.has_ended or (job.expected_seconds is None and job.deadline is None):
        return None
    waits = job.state in Job.WAITING
    begins = max(starts_by, now) if waits and starts_by else None if waits else now
    left = ends = None
    if job.expected_seconds is not None:
        had = job.held_for
        if not waits and lease is not None and lease.held_from is not None:
            had += now - lease.held_from
        left = max(timedelta(seconds=job.expected_seconds) - had, timedelta(0))
        ends = begins and begins + left
    # Whoever waits without a known start is late once even a start right now would be too late.
    sooner = ends or (begins or now) + (left or timedelta(0))
    return RunTime(left, ends, job.deadline, job.deadline is not None and sooner > job.deadline)
