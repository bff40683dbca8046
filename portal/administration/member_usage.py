"""Reads what each member of a team uses: GPUs now, GPU time and cost in the current month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from django.db.models import Sum

from accounting.core.calendar import first_of_month, start_of_month
from accounting.core.clock import now_from_database
from accounting.models import Tenant, User
from accounting.reports.usage import By, UsageRow, usage_report
from scheduling.models import Lease


@dataclass
class MemberUsage:
    """What a user uses in a team and in the teams below it."""

    gpus: int = 0  # held now
    gpu_seconds: Decimal = Decimal(0)  # booked in the current month (UTC)
    costs: dict[str, Decimal] = field(default_factory=dict)  # by currency

    def add(self, other: MemberUsage) -> None:
        self.gpus += other.gpus
        self.gpu_seconds += other.gpu_seconds
        for currency, cost in other.costs.items():
            self.costs[currency] = self.costs.get(currency, Decimal(0)) + cost

    def _book(self, row: UsageRow) -> None:
        self.add(MemberUsage(0, row.gpu_seconds, {row.currency: row.cost}))


@dataclass(frozen=True)
class TeamMembersUsage:
    by_user: dict[int, MemberUsage]

    @classmethod
    def read(cls, tenant: Tenant, viewer: User) -> TeamMembersUsage:
        """Reads what each user uses in the team and in the teams below it. The viewer must manage the team."""
        found: dict[int, MemberUsage] = defaultdict(MemberUsage)
        held = Lease.objects.filter(state__in=Lease.HOLDING, job__tenant__in=Tenant.objects.within(tenant))
        for owner, gpus in held.values_list("job__owner").annotate(Sum("gpus")).order_by():
            found[owner].gpus = gpus
        begins = start_of_month(first_of_month(now_from_database()))
        for row in usage_report(viewer, begins, None, by=[By.USER], tenant=tenant, totals=False).rows:
            if row.user_id is not None:
                found[row.user_id]._book(row)
        return cls(dict(found))

    def of(self, user_id: int) -> MemberUsage:
        return self.by_user.get(user_id) or MemberUsage()

    def of_others(self, members: Iterable[int]) -> MemberUsage | None:
        """Returns what users use who are not in `members`, such as members of teams below; None if it is nothing."""
        others = [usage for user, usage in self.by_user.items() if user not in set(members)]
        total = MemberUsage()
        for usage in others:
            total.add(usage)
        return total if others else None
