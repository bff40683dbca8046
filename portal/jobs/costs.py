"""The cost of many jobs until now, by what they belong to."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from django.db.models import OuterRef, QuerySet, Subquery, Sum

from accounting.models import User
from accounting.usage.plan import UsagePlan
from accounting.usage.scope import Scope
from scheduling.models import Job, Lease
from scheduling.reports.unbooked import unbooked_costs


def costs_by(
    owner: Literal["service_id", "sweep_id"], jobs: QuerySet[Job], user: User
) -> dict[int | None, list[tuple[str, Decimal]]]:
    """Returns the cost of `jobs` until now by their column `owner`, as pairs (currency, amount).

    The booked cost includes only what was billed to teams that `user` may see. Usage that is not booked yet is added.
    """
    of = Subquery(Job.objects.filter(pk=OuterRef("job_id")).values(owner)[:1])
    booked = UsagePlan(Scope(user, None, None, {"job_id__in": jobs.values("pk")}), by_job=True)
    sums: dict[int | None, dict[str, Decimal]] = {}

    def add(key: int | None, currency: str, money: Decimal) -> None:
        found = sums.setdefault(key, {})
        found[currency] = found.get(currency, Decimal(0)) + money

    # Of archived months only rollups exist.
    closed = [(part, "cost") for part in booked.rollups()]
    for part, cost in [*closed, *((part, "full_cost") for part in booked.segments())]:
        for row in part.annotate(of=of).values("of", "currency").annotate(money=Sum(cost)):
            add(row["of"], row["currency"], row["money"])
    for lease, _, spent, currency in unbooked_costs(Lease.objects.filter(job__in=jobs).select_related("job")):
        add(getattr(lease.job, owner), currency, spent)
    return {key: sorted(found.items()) for key, found in sums.items()}
