"""The idle report: GPU time that teams held without using it, and its cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import DecimalField, ExpressionWrapper, F, Sum
from django.db.models.functions import NullIf

from accounting.core.calendar import hours_beginning_in
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import name_key
from accounting.core.numbers import MICRO
from accounting.models import Tenant, User
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import Groups, each_row
from accounting.usage.scope import Scope

AMOUNTS = ("gpu_seconds", "idle", "cost")


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Represents the idle GPU time of one team in one currency. Teams below it are not included. Times are GPU-seconds.

    `cost`: the cost of all GPU time that the team held. `idle_cost`: the part of this cost that idle time caused. For
    each stored row of usage, this is the cost of the row times the idle fraction of its time.
    """

    tenant_id: int
    tenant: str
    slug: str
    currency: str
    idle: Decimal
    held: Decimal
    idle_cost: Decimal
    cost: Decimal

    @property
    def part(self) -> float:
        return float(self.idle / self.held) if self.held else 0.0


@consistent_read()
def idle_report(
    viewer: User, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[IdleRow]:
    """Returns one row for each team with idle time in the full UTC hours that begin in [begins, ends), most idle time
    first.

    Leaves out teams that `viewer` may not see. With `tenant`, returns only teams in the subtree of `tenant`.
    """
    sums: dict[tuple[int, str, str, str], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 4)
    scope = Scope(viewer, *hours_beginning_in(begins, ends), tenant=tenant)
    columns = {"tenant_id": F("tenant__pk"), "tenant": F("tenant__name"), "slug": F("tenant__slug")}
    part = ExpressionWrapper(
        F("cost_sum") * F("idle_sum") / NullIf(F("gpu_seconds_sum"), Decimal(0)),
        DecimalField(max_digits=30, decimal_places=12),
    )
    for rows in each_row(UsagePlan(scope, by_job=False), Groups(columns), AMOUNTS):
        grouped = rows.values("by_tenant_id", "by_tenant", "by_slug", "by_currency").annotate(
            all_idle=Sum("idle_sum"), all_held=Sum("gpu_seconds_sum"), all_part=Sum(part), all_cost=Sum("cost_sum")
        )  # fmt: skip
        for row in grouped:
            whose = row["by_tenant_id"], row["by_tenant"], row["by_slug"], row["by_currency"]
            more = (row[f"all_{name}"] or Decimal(0) for name in ("idle", "held", "part", "cost"))
            sums[whose] = [known + amount for known, amount in zip(sums[whose], more, strict=True)]
    found = [
        IdleRow(*whose, idle, held, idle_cost.quantize(MICRO), cost)
        for whose, (idle, held, idle_cost, cost) in sums.items()
        if idle
    ]
    return sorted(found, key=lambda row: (-row.idle, name_key(row.tenant), row.currency))
