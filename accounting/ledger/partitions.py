"""The partitions of the ledger: one per calendar month (UTC), created ahead of time and when one is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time

from django.db import IntegrityError, connection

AHEAD = 3
CHECK_VIOLATION = "23514"


def first_of_month(moment: datetime) -> date:
    """Returns the first day of the month (UTC) of `moment`."""
    return moment.astimezone(UTC).date().replace(day=1)


def start_of_month(month: date) -> datetime:
    """Returns when the month (UTC) with this first day begins."""
    return datetime.combine(month, time(), UTC)


def months_after(first: date, count: int) -> date:
    """Returns the first day of the month that is `count` months after that of `first`."""
    year, month = divmod(first.year * 12 + first.month - 1 + count, 12)
    return date(year, month + 1, 1)


def add_months(months: Iterable[date]) -> None:
    """Creates missing partitions of these months, in the caller's transaction if there is one."""
    with connection.cursor() as cursor:
        for month in sorted(set(months)):
            cursor.execute("SELECT accounting_add_month(%s)", [month])


def add_months_ahead(now: datetime) -> None:
    """Creates the partitions of this month and the next few."""
    add_months(months_after(first_of_month(now), count) for count in range(AHEAD + 1))


def lacks_partition(error: IntegrityError) -> bool:
    """Returns whether a row was refused because its month has no partition, not by a named constraint."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return (
        diagnosis is not None and diagnosis.sqlstate == CHECK_VIOLATION and diagnosis.constraint_name is None
    )
