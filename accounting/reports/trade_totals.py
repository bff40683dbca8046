"""Totals of the trades in the ledger.

For each generation, the totals of all tenants sum to zero, to the microsecond.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce

from accounting.core.calendar import first_of_month
from accounting.core.name_order import by_name
from accounting.models import LedgerAccount, LedgerEntry


@dataclass(frozen=True)
class BookedTrades:
    """Represents the GPU-seconds of one generation that tenants gave and received in trades."""

    generation: str
    gave: Decimal
    got: Decimal

    @property
    def sum(self) -> Decimal:
        return self.got - self.gave


def booked_trades(
    begins: datetime, ends: datetime, tenants: Collection[int] | None = None
) -> list[BookedTrades]:
    """Returns the totals of trades that began in [begins, ends), one for each generation. Reversed trades cancel out.

    `tenants`: the ids of the tenants to include; None means all tenants.
    """
    entries = LedgerEntry.objects.filter(
        account__kind=LedgerAccount.Kind.TRADE,
        month__gte=first_of_month(begins),
        month__lte=first_of_month(ends),
        transaction__month=F("month"),  # lets PostgreSQL read only the partitions of these months
        transaction__period__startswith__gte=begins,
        transaction__period__startswith__lt=ends,
    )
    if tenants is not None:
        entries = entries.filter(account__tenant__in=tenants)
    nothing = Decimal(0)
    rows = entries.values_list("account__generation__name").annotate(
        gave=Coalesce(Sum("amount", filter=Q(amount__lt=0)), nothing),
        got=Coalesce(Sum("amount", filter=Q(amount__gt=0)), nothing),
    )
    return [
        BookedTrades(generation, -gave, got)
        for generation, gave, got in rows.order_by(*by_name("account__generation__name"))
    ]
