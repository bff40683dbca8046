"""What many jobs have used and cost until now, by what they belong to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, TypeAlias

from django.db.models import OuterRef, QuerySet, Subquery, Sum

from accounting.models import User
from accounting.usage.plan import UsagePlan
from accounting.usage.scope import Scope
from scheduling.models import Job, Lease
from scheduling.reports.unbooked import unbooked_costs

Owner: TypeAlias = Literal["service_id", "sweep_id", "step_index"]


@dataclass
class Use:
    """What jobs have used until now. `costs` has a sum for each currency."""

    gpu_seconds: Decimal = Decimal(0)
    costs: dict[str, Decimal] = field(default_factory=dict)

    @property
    def gpu_hours(self) -> Decimal:
        return self.gpu_seconds / 3600

    @property
    def amounts(self) -> list[tuple[str, Decimal]]:
        """Returns pairs (currency, amount)."""
        return sorted(self.costs.items())

    def add(self, currency: str, seconds: Decimal, money: Decimal) -> None:
        self.gpu_seconds += seconds
        self.costs[currency] = self.costs.get(currency, Decimal(0)) + money


def use_by(owner: Owner, jobs: QuerySet[Job], user: User) -> dict[int | None, Use]:
    """Returns what `jobs` have used until now, by their column `owner`.

    The booked cost includes only what was billed to teams that `user` may see. Usage that is not booked yet is added.
    """
    of = Subquery(Job.objects.filter(pk=OuterRef("job_id")).values(owner)[:1])
    booked = UsagePlan(Scope(user, None, None, {"job_id__in": jobs.values("pk")}), by_job=True)
    found: defaultdict[int | None, Use] = defaultdict(Use)
    # Of archived months only rollups exist.
    closed = [(part, "cost") for part in booked.rollups()]
    for part, cost in [*closed, *((part, "full_cost") for part in booked.segments())]:
        rows = part.annotate(of=of).values("of", "currency")
        for row in rows.annotate(seconds=Sum("gpu_seconds"), money=Sum(cost)):
            found[row["of"]].add(row["currency"], row["seconds"], row["money"])
    leases = Lease.objects.filter(job__in=jobs).select_related("job")
    for lease, seconds, spent, currency in unbooked_costs(leases):
        found[getattr(lease.job, owner)].add(currency, seconds, spent)
    return dict(found)


def costs_by(owner: Owner, jobs: QuerySet[Job], user: User) -> dict[int | None, list[tuple[str, Decimal]]]:
    """Returns the cost of `jobs` until now by their column `owner`, as pairs (currency, amount); see `use_by`."""
    return {key: use.amounts for key, use in use_by(owner, jobs, user).items()}
