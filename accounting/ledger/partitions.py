"""The partitions of the ledger: one for each calendar month (UTC), made ahead of time and where one is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time

from django.db import IntegrityError, connection

AHEAD = 3
CHECK_VIOLATION = "23514"


def first_of_month(moment: datetime) -> date:
    """The first day of the month (UTC) of `moment`."""
    return moment.astimezone(UTC).date().replace(day=1)


def start_of_month(month: date) -> datetime:
    """When the month (UTC) begins whose first day this is."""
    return datetime.combine(month, time(), UTC)


def months_after(first: date, count: int) -> date:
    """The first day of the month that is `count` months after that of `first`."""
    year, month = divmod(first.year * 12 + first.month - 1 + count, 12)
    return date(year, month + 1, 1)


def add_months(months: Iterable[date]) -> None:
    """Makes the partitions of these months where they are missing; inside the caller's transaction, if any."""
    with connection.cursor() as cursor:
        for month in sorted(set(months)):
            cursor.execute("SELECT accounting_add_month(%s)", [month])


def add_months_ahead(now: datetime) -> None:
    """Makes those of this month and of the next few."""
    add_months(months_after(first_of_month(now), count) for count in range(AHEAD + 1))


def lacks_partition(error: IntegrityError) -> bool:
    """Whether a row was refused because its month has no partition, and not by a rule that has a name."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return (
        diagnosis is not None and diagnosis.sqlstate == CHECK_VIOLATION and diagnosis.constraint_name is None
    )
