"""Creates the monthly partitions (UTC) of the ledger's tables, ahead of time or when a row needs one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime

from django.db import IntegrityError, connection

from accounting.core.calendar import first_of_month, months_after

AHEAD = 3
CHECK_VIOLATION = "23514"


def add_months(months: Iterable[date]) -> None:
    """Creates the missing partitions of these months."""
    with connection.cursor() as cursor:
        for month in sorted(set(months)):
            cursor.execute("SELECT accounting_add_month(%s)", [month])


def add_months_ahead(now: datetime) -> None:
    """Creates the missing partitions of the month that contains `now`, and of the AHEAD months after it."""
    add_months(months_after(first_of_month(now), count) for count in range(AHEAD + 1))


def lacks_partition(error: IntegrityError) -> bool:
    """Returns whether an error means that the partition for a row's month is missing.

    PostgreSQL reports this with the same code as a violated check constraint, but without the constraint's name.
    """
    diagnosis = getattr(error.__cause__, "diag", None)
    return (
        diagnosis is not None and diagnosis.sqlstate == CHECK_VIOLATION and diagnosis.constraint_name is None
    )
