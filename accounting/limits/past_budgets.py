"""Reads a team's budgets in past periods, with the amounts that were valid in these periods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from accounting.core.calendar import DAY, MICROSECOND
from accounting.limits.forecast import forecast
from accounting.limits.periods import MONTHS, calendar_period
from accounting.limits.spending import UnbookedUsage, money_spent
from accounting.models import Budget, BudgetChange, Tenant

# A statement lists at most this many months, and at most this many quarters.
MOST_PERIODS = 12


@dataclass(frozen=True, slots=True)
class PastBudget:
    """Represents one period of a budget: amount and spending as of the time `at`, and the forecast for the period's
    end.

    `forecast` is None if the period had ended by `at`, or if `at` is in the period's first two days.
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


def past_budgets(
    tenant: Tenant, first: date, last: date, *, until: datetime, now: datetime, held: Iterable[UnbookedUsage]
) -> list[PastBudget]:
    """Returns the periods of a tenant's budgets that overlap the days from `first` to `last`.

    Each result has the amount and the spending as of one time:

    - the end of the budget period, if this period ends within these days
    - `until` (the end of the last day), if the budget period ends later
    - `now`, if the time above is in the future

    `held`: usage that is not in the ledger yet. Read it and call this function in the same database snapshot
    (`consistent_read`).

    Budget periods begin and end at midnight UTC. `first` and `last` may be days of another time zone, because only
    calendar dates are compared.
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
            found.append(PastBudget(period, begins, ends, at, amount, spent, ahead))
    return sorted(found, key=lambda one: (MONTHS[one.period], one.begins))


def _periods(period: str, first: date, last: date) -> Iterable[tuple[datetime, datetime]]:
    """Returns (start, end) for each budget period that overlaps the days from `first` to `last`, in order of time.

    If there are more than MOST_PERIODS periods, returns only the last MOST_PERIODS.
    """
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
    """Returns the amount of the team's monthly or quarterly budget just before the time `at`; None if there was no
    budget.

    `changes`: the changes of all the team's budgets in order of time. `period`: month or quarter.
    """
    amounts = [
        change.amount
        for change in changes
        if change.period == period and (change.at is None or change.at < at)
    ]
    return amounts[-1] if amounts else None
