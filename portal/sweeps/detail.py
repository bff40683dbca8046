"""Data for a sweep's page: why its members wait, what it cost, and why members failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from accounting.models import User
from portal.jobs.costs import costs_by
from portal.jobs.failure import cause_of
from scheduling.jobs.explain import Explainer
from scheduling.models import Job, JobForecast, Sweep, SweepMember


@dataclass(frozen=True)
class Waiting:
    """The jobs of a sweep that wait, and why the first of them does."""

    count: int
    first: Job
    sentence: str
    forecast: JobForecast | None  # of the first job's start


def waiting_of(shown: Sweep, user: User) -> Waiting | None:
    """Returns how many jobs of the sweep wait and why the first does; None if none waits."""
    waiting = Job.objects.filter(sweep=shown, state__in=Job.WAITING)
    count = waiting.count() if shown.ended_at is None else 0
    first = waiting.select_related("forecast", "owner").order_by("sweep_index").first() if count else None
    if first is None:
        return None
    first.tenant, first.cluster = shown.tenant, shown.cluster
    why = Explainer(shown.cluster, user).explain(first)
    return Waiting(count, first, why.sentence, None if why.never else getattr(first, "forecast", None))


def cost_of(shown: Sweep, user: User) -> list[tuple[str, Decimal]]:
    """Returns the cost of all jobs that the sweep ever had, as pairs (currency, amount)."""
    return costs_by("sweep_id", Job.objects.filter(sweep=shown), user).get(shown.pk, [])


def causes_of(shown: Sweep, members: Iterable[SweepMember]) -> dict[int, str]:
    """Returns in one line why each failed member failed, or why a member stopped early, by index."""
    found = {}
    for member in members:
        if member.state == SweepMember.State.FAILED and member.job:
            # The jobs of a sweep have the same cluster and the same workers, so neither is read for each member.
            member.job.cluster, member.job.spec = shown.cluster, shown.spec
            found[member.index] = cause_of(member.job)
        elif member.state == SweepMember.State.STOPPED and member.outdone_at is not None:
            found[member.index] = f"worse than the median of the others at step {member.outdone_at:.6g}"
    return found
