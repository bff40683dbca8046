"""The partitions of the ledger: one per calendar month (UTC), created ahead of time and when one is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime

from django.db import IntegrityError, connection

from accounting.core.calendar import first_of_month, months_after

AHEAD = 3
CHECK_VIOLATION = "23514"


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
