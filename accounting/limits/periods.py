"""Computes the periods over which usage counts against limits and budgets."""

from __future__ import annotations

from datetime import datetime, timedelta

from accounting.core.calendar import first_of_month, months_after, start_of_hour, start_of_month
from accounting.models import Quota

Months = int
MONTHS: dict[str, Months] = {Quota.Period.MONTH: 1, Quota.Period.QUARTER: 3}


def period_of(period: str, days: int | None, now: datetime) -> tuple[datetime, datetime | None]:
    """Returns the start and the end of the present period of a limit or budget. `now`: the present time.

    `period`: month, quarter or rolling. A rolling period covers the last `days` days. It starts at a full hour, and its
    end is None.
    """
    if period == Quota.Period.ROLLING:
        return start_of_hour(now - timedelta(days=days or 1)), None
    return calendar_period(MONTHS[period], now)


def calendar_period(months: Months, now: datetime) -> tuple[datetime, datetime]:
    """Returns the start and the end of the period of `months` calendar months (UTC) that contains `now`.

    Each year is divided into such periods from January on. For example, three months are a calendar quarter.
    """
    month = first_of_month(now)
    first = months_after(month, -((month.year * 12 + month.month - 1) % months))
    return start_of_month(first), start_of_month(months_after(first, months))
