"""Over what time a limit counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from accounting.models import Quota
from accounting.sums import start_of_hour

Months = int
MONTHS: dict[str, Months] = {Quota.Period.MONTH: 1, Quota.Period.QUARTER: 3}


def period_of(period: str, days: int | None, now: datetime) -> tuple[datetime, datetime | None]:
    """When it began, and when the next one does. A rolling one begins at a full hour and has no end."""
    if period == Quota.Period.ROLLING:
        return start_of_hour(now - timedelta(days=days or 1)), None
    return calendar_period(MONTHS[period], now)


def calendar_period(months: Months, now: datetime) -> tuple[datetime, datetime]:
    """So many calendar months (UTC), the first of which is January or follows on another such period."""
    begins = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    number = begins.year * 12 + begins.month - 1
    first = number - number % months
    return _month(begins, first), _month(begins, first + months)


def _month(like: datetime, number: int) -> datetime:
    year, month = divmod(number, 12)
    return like.replace(year=year, month=month + 1)
