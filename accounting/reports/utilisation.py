"""The utilisation of GPUs in closed hours: for each hour, and summed by hour of the week."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import Min

from accounting.core.calendar import first_of_month, hours_beginning_in
from accounting.models import ClosedBook

# A UTC hour counts in the local hour in which it begins, even if it ends half an hour into the next local hour.
WEEK = """
    SELECT extract(isodow FROM lower(period) AT TIME ZONE %(zone)s)::int,
           extract(hour FROM lower(period) AT TIME ZONE %(zone)s)::int, {sums}
      {closed} GROUP BY 1, 2
"""
HOURS = """
    SELECT date_trunc('hour', lower(period), 'UTC'), {sums} {closed} GROUP BY 1
"""
SUMS = "sum(busy), sum(busy + idle + assembling), sum(capacity - others - drained - down), sum(capacity)"
CLOSED = """
      FROM accounting_capacitysegment
     WHERE month >= %(first)s AND month <= %(last)s AND lower(period) >= %(begins)s AND lower(period) < %(ends)s
       AND (%(book)s::bigint IS NULL OR book = %(book)s)
"""


@dataclass(frozen=True, slots=True)
class Use:
    """Represents the use of GPUs, in GPU-seconds.

    `usable` is `capacity` minus the time in which GPUs were down, were drained, or were used by processes outside
    Fairlot.
    """

    busy: Decimal
    held: Decimal
    usable: Decimal
    capacity: Decimal

    @property
    def part_held(self) -> float | None:
        """Returns the fraction of the capacity that was held; None if the capacity is 0."""
        return float(self.held / self.capacity) if self.capacity else None

    @property
    def part_busy(self) -> float | None:
        return float(self.busy / self.capacity) if self.capacity else None


def closed_until(*, books: Iterable[int]) -> datetime | None:
    """Returns the time until which all hours of the given clusters' books are closed.

    Ignores books that were never opened. Returns None if none of `books` was opened.
    """
    closed = ClosedBook.objects.filter(book__in=books).aggregate(until=Min("until"))
    until: datetime | None = closed["until"]
    return until


def use_by_hour_of_week(
    begins: datetime, ends: datetime, *, zone: str, book: int | None = None
) -> Mapping[tuple[int, int], Use]:
    """Returns the use of GPUs by (weekday, hour) in the time zone `zone`. Weekdays are 1 (Monday) to 7.

    Each Use is the sum over all weeks in [begins, ends). Leaves out (weekday, hour) pairs without a closed hour.
    """
    return {(day, hour): Use(*rest) for day, hour, *rest in _rows(WEEK, begins, ends, book, zone)}


def use_by_hour(begins: datetime, ends: datetime, *, book: int | None = None) -> Mapping[datetime, Use]:
    """Returns the use of GPUs in each closed UTC hour that begins in [begins, ends), by hour.

    `book`: the id of one cluster; None means all clusters.
    """
    return {hour: Use(*rest) for hour, *rest in _rows(HOURS, begins, ends, book, "UTC")}


def _rows(
    statement: str, begins: datetime, ends: datetime, book: int | None, zone: str
) -> list[tuple[Any, ...]]:
    first, last = hours_beginning_in(begins, ends)
    with connection.cursor() as cursor:
        cursor.execute(
            statement.format(sums=SUMS, closed=CLOSED),
            {
                "begins": first,
                "ends": last,
                "first": first_of_month(first),
                "last": first_of_month(last),
                "book": book,
                "zone": zone,
            },
        )
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
