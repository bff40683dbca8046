"""Finds jobs that begin again at each attempt, so that they do the same work several times and may never end.

A program that saves no checkpoint starts at its first step whenever its job is stopped. Its lost work is in `lost_from`
of the leases (lost_work.py). Of a job that reports no steps, it is only known if its spec has a `checkpoint` and no
attempt found one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.core.wording import counted, number
from accounting.models import NotificationEvent
from scheduling.core.announcing import announce_warning
from scheduling.models import Job, JobEvent, Lease
from scheduling.models.event_codes import EventCode

# So many attempts must have been repeated, each at least by this part of its time. Programs that save now and then lose
# less of an attempt.
LEAST_ATTEMPTS = 2
LEAST_PART = 0.5
INTERRUPTED = (Lease.End.STOPPED, Lease.End.LOST, Lease.End.FROZEN)
_ONLY = (
    "job_id", "epoch", "gpus", "generation__name", "state", "end_reason", "held_from", "held_until", "running_from",
    "first_steps", "progress_steps", "lost_from",
)  # fmt: skip
KEY = "repeats"  # of the notification, which a job has once


@dataclass(frozen=True, slots=True)
class RepeatedWork:
    """The work that a job's attempts did again.

    `step` is where the latest attempt began, and `reached` the highest step of the attempts before; both are None if
    the program reports no steps. `gpu_seconds` has the time that was spent in vain, by the name of the GPU type.
    """

    attempts: int
    step: float | None
    reached: float | None
    gpu_seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.gpu_seconds.values())

    @property
    def sentence(self) -> str:
        """Returns what happened, as a sentence without a full stop."""
        lost = f"About {number(self.total / 3600)} GPU-hours were spent on work that was done again"
        if self.step is None or self.reached is None:
            return f"{counted(self.attempts, 'attempt')} ended, and none found a complete checkpoint. {lost}"
        return (
            f"The work of {counted(self.attempts, 'attempt')} was lost: the latest attempt began at step"
            f" {number(self.step)}, although step {number(self.reached)} had been reached. {lost}"
        )


def repeated_work_of(job: Job) -> RepeatedWork | None:
    """Returns the work that an unfinished job has done again; None if it goes on where it was, or if nothing is known.

    Makes no query for a job that was interrupted less often than LEAST_ATTEMPTS times.
    """
    if job.has_ended or job.epoch <= LEAST_ATTEMPTS:
        return None
    leases = list(Lease.objects.filter(job=job).order_by("epoch").select_related("generation").only(*_ONLY))
    if found := repeated_work(leases):
        return found
    ended = Lease.End.STOPPED, Lease.End.LOST
    ran = [one for one in leases if one.end_reason in ended and one.running_from]
    if (
        not job.spec.get("checkpoint")
        or len(ran) < LEAST_ATTEMPTS
        or any(one.first_steps is not None for one in leases)
    ):
        return None
    if leases[-1].running_from is None:  # whether it finds a checkpoint is not known yet
        return None
    if JobEvent.objects.filter(job=job, code=EventCode.RESUMED).exists():
        return None
    return RepeatedWork(len(ran), None, None, _sums((one, _held(one)) for one in ran))


def repeated_work(leases: Sequence[Lease]) -> RepeatedWork | None:
    """Returns the work that was done again, from the leases of one job, earliest first.

    Returns None unless the latest attempt that reported its steps repeated most of the one before.
    """
    told = [one for one in leases if one.first_steps is not None]
    before = [one for one in told[:-1] if one.end_reason in INTERRUPTED]
    repeated = [one for one in before if _lost(one) >= LEAST_PART * _held(one) > 0]
    if len(repeated) < LEAST_ATTEMPTS or repeated[-1] is not told[-2]:
        return None
    reached = max(one.progress_steps or 0.0 for one in before)
    return RepeatedWork(
        len(repeated), told[-1].first_steps, reached, _sums((one, _lost(one)) for one in before)
    )


def warn_of_repeated_work(jobs: Collection[int]) -> None:
    """Announces once for each of the jobs that does its work again that it does. The caller has saved all leases."""
    if not jobs:
        return
    told = NotificationEvent.objects.filter(key__in=[f"job:{pk}:{KEY}" for pk in jobs])
    left = set(jobs) - set(told.values_list("job_id", flat=True))
    by_job: dict[int, list[Lease]] = defaultdict(list)
    for lease in (
        Lease.objects.filter(job__in=left).order_by("epoch").select_related("generation").only(*_ONLY)
    ):
        by_job[lease.job_id].append(lease)
    found = {pk: work for pk, leases in by_job.items() if (work := repeated_work(leases))}
    for job in Job.objects.filter(pk__in=found).select_related("tenant", "owner").defer("spec"):
        announce_warning(job, "Repeats its work", found[job.pk].sentence, topic=KEY)


def _lost(lease: Lease) -> float:
    since, until = lease.lost_from, lease.held_until
    return (until - since).total_seconds() if since is not None and until is not None else 0.0


def _held(lease: Lease) -> float:
    since, until = lease.held_from, lease.held_until
    return (until - since).total_seconds() if since is not None and until is not None else 0.0


def _sums(times: Iterable[tuple[Lease, float]]) -> dict[str, float]:
    """Returns GPU-seconds by the name of the GPU type, for leases with the seconds that count."""
    found: dict[str, float] = defaultdict(float)
    for lease, seconds in times:
        if seconds:
            found[lease.generation.name] += seconds * lease.gpus
    return dict(found)
