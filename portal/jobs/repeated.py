"""What a job's page shows of work that was done again after suspensions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from accounting.core.numbers import MICRO
from accounting.models import User
from portal.jobs.detail import cost_of
from portal.jobs.remedies import RemedyLink, links_for_repeats
from scheduling.leases.repeated_work import RepeatedWork, repeated_work_of
from scheduling.models import Job


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that was done again, its cost (currency and sum), and what helps."""

    work: RepeatedWork
    costs: Sequence[tuple[str, Decimal]]
    remedies: Sequence[RemedyLink]


def repeated_of(job: Job, user: User) -> Repeated | None:
    """Returns what `user` sees of the work that an unfinished job did again; None if it did nothing again."""
    work = repeated_work_of(job)
    if work is None:
        return None
    return Repeated(work, costs_of(job, user, work), links_for_repeats(job, user))


def costs_of(job: Job, user: User, work: RepeatedWork) -> list[tuple[str, Decimal]]:
    """Returns what the repeated work cost, by currency: the same part of the job's cost on each GPU type as of its time
    there."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in cost_of(job, user).generations:
        lost = Decimal(work.gpu_seconds.get(row.name, 0))
        if row.gpu_seconds and lost:
            sums[row.currency] += row.cost * min(lost / row.gpu_seconds, Decimal(1))
    return sorted((currency, cost.quantize(MICRO)) for currency, cost in sums.items())
