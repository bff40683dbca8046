"""How the budgets of a team stood: of the periods that some days touch, by what was set then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from accounting.ledger.rollups import DAY
from accounting.limits.forecast import forecast
from accounting.limits.periods import MONTHS, calendar_period
from accounting.limits.spending import UnbookedUsage, money_spent
from accounting.models import Budget, BudgetChange, Tenant
from accounting.pricing.tariff import MICROSECOND

# Of each kind in one statement.
MOST_PERIODS = 12


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a budget's period that began at `begins`: what was set and spent as of `at`, and what was to be expected.

    `forecast` is None where the period was over by then, and in its first two days.
    """

    period: str
    begins: datetime
    ends: datetime
    at: datetime
    amount: Decimal
    spent: Decimal
    forecast: Decimal | None

    @property
    def name(self) -> str:
        return Budget.Period(self.period).label

    @property
    def is_over(self) -> bool:
        return self.at >= self.ends

    @property
    def left(self) -> Decimal:
        return self.amount - self.spent


def standings(
    tenant: Tenant, first: date, last: date, *, until: datetime, now: datetime, held: Iterable[UnbookedUsage]
) -> list[Standing]:
    """For the days from `first` to `last`, which end at `until`, of a statement that is read at `now`.

    A budget's period that ends within the days (by the calendar: it is one of UTC, and they may not be) is told of
    as a whole, another one as of `until`; none as of later than now. To be asked in the same moment as for `held`.
    """
    changes = list(BudgetChange.objects.filter(tenant_id=tenant.pk))
    below: list[int] | None = None
    found = []
    for period in dict.fromkeys(change.period for change in changes):
        for begins, ends in _periods(period, first, last):
            at = min(now, ends if ends.date() <= last + DAY else until)
            amount = amount_at(changes, period, at)
            if amount is None or at <= begins:
                continue
            if below is None:
                below = list(Tenant.objects.within(tenant).values_list("pk", flat=True))
            spent = money_spent(begins, now, held, below, ends=at)
            ahead = None if at >= ends else forecast(spent, begins=begins, now=at, ends=ends)
            found.append(Standing(period, begins, ends, at, amount, spent, ahead))
    return sorted(found, key=lambda one: (MONTHS[one.period], one.begins))


def _periods(period: str, first: date, last: date) -> Iterable[tuple[datetime, datetime]]:
    """Those that the days touch, the latest of them if they are many."""
    at = datetime.combine(last, time(), UTC)
    found: list[tuple[datetime, datetime]] = []
    while len(found) < MOST_PERIODS:
        begins, ends = calendar_period(MONTHS[period], at)
        found.append((begins, ends))
        if begins.date() <= first:
            break
        at = begins - MICROSECOND
    return reversed(found)


def amount_at(changes: Iterable[BudgetChange], period: str, at: datetime) -> Decimal | None:
    """What was set as of a moment; at the end of a period what was set before it."""
    amounts = [
        change.amount
        for change in changes
        if change.period == period and (change.at is None or change.at < at)
    ]
    return amounts[-1] if amounts else None
