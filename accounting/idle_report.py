"""What teams held without using it, as booked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Sum

from accounting.models import Tenant, User
from accounting.sources import Row, Scope, Sources
from accounting.sums import hours_beginning_in


@dataclass(frozen=True, slots=True)
class IdleRow:
    """GPU-seconds of one team, without those of teams below it."""

    tenant_id: int
    tenant: str
    idle: Decimal
    held: Decimal

    @property
    def part(self) -> float:
        return float(self.idle / self.held) if self.held else 0.0


def idle_report(
    viewer: User, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[IdleRow]:
    """Of teams that `viewer` may see and that held something idle in full UTC hours that begin in [begins, ends).

    Most idle first.     `tenant` narrows it down to a tenant with all below it.
    """
    first, last = hours_beginning_in(begins, ends)
    sums: dict[tuple[int, str], list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    sources = Sources(Scope(viewer, first, last, tenant=tenant), Row(None, "UTC"), by_job=False)
    for part in [*sources.sums(), *sources.segments()]:
        grouped = part.values_list("tenant__pk", "tenant__name")
        for pk, name, idle, held in grouped.annotate(unused=Sum("idle"), time=Sum("gpu_seconds")):
            both = sums[pk, name]
            both[0] += idle
            both[1] += held
    rows = [IdleRow(*team, *both) for team, both in sums.items() if both[0]]
    return sorted(rows, key=lambda row: (-row.idle, row.tenant))
