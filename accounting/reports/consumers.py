"""The top consumers: the GPU time of teams or users in a period, how much of it was idle, and what it cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Sum

from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import name_key
from accounting.models import Tenant, User
from accounting.usage.plan import UsagePlan
from accounting.usage.queries import Groups, each_row
from accounting.usage.scope import Scope

AMOUNTS = ("gpu_seconds", "idle", "cost", "segments")
OF_TEAM = {"tenant_id": F("tenant__pk"), "tenant": F("tenant__name"), "slug": F("tenant__slug")}
OF_USER = {**OF_TEAM, "user": F("user__username")}


@dataclass(frozen=True, slots=True)
class Consumer:
    """Represents the booked GPU time and cost of a team, or of a user in a team, in one currency. Times are
    GPU-seconds.

    The teams below a team are separate rows. `user` is None for a team.
    """

    tenant_id: int
    tenant: str
    slug: str
    user: str | None
    currency: str
    held: Decimal
    idle: Decimal
    cost: Decimal

    @property
    def idle_part(self) -> float:
        return float(self.idle / self.held) if self.held else 0.0


@consistent_read()
def top_consumers(
    viewer: User,
    begins: datetime,
    ends: datetime,
    *,
    by_user: bool,
    tenant: Tenant | None = None,
    generation: str = "",
) -> list[Consumer]:
    """Returns the consumers with booked GPU time in [begins, ends), most GPU time first.

    Leaves out teams that `viewer` may not see. With `tenant`, returns only teams in its subtree; with `generation`,
    only the use of GPUs of this type. The database sums the usage, by consumer and currency.
    """
    narrow = {"generation__name": generation} if generation else {}
    scope = Scope(viewer, begins, ends, narrow, tenant)
    columns = OF_USER if by_user else OF_TEAM
    sums: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * len(AMOUNTS))
    keys = [f"by_{name}" for name in (*columns, "currency")]
    for rows in each_row(UsagePlan(scope, by_job=False), Groups(columns), AMOUNTS):
        for row in rows.values(*keys).annotate(**{f"all_{name}": Sum(f"{name}_sum") for name in AMOUNTS}):
            whose = tuple(row[key] for key in keys)
            more = (Decimal(row[f"all_{name}"] or 0) for name in AMOUNTS)
            sums[whose] = [known + amount for known, amount in zip(sums[whose], more, strict=True)]
    found = []
    for whose, (held, idle, cost, segments) in sums.items():
        named = dict(zip((*columns, "currency"), whose, strict=True))
        if segments:  # corrections reversed all usage of the other groups
            found.append(Consumer(**{"user": None, **named}, held=held, idle=idle, cost=cost))
    return sorted(found, key=_most_first)


def _most_first(one: Consumer) -> tuple[object, ...]:
    return -one.held, name_key(one.tenant), name_key(one.user or ""), one.currency
