"""How well GPUs were used by the hour of the week, and hour by hour, in closed hours."""

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

# An hour is a reader's hour by when it began: clocks that differ from UTC by half hours have it in their first half.
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
    """GPU-seconds. `usable` is capacity without what is used by others, drained or down and not held."""

    busy: Decimal
    held: Decimal
    usable: Decimal
    capacity: Decimal

    @property
    def part_held(self) -> float | None:
        """Of capacity."""
        return float(self.held / self.capacity) if self.capacity else None

    @property
    def part_busy(self) -> float | None:
        return float(self.busy / self.capacity) if self.capacity else None


def closed_until(*, books: Iterable[int]) -> datetime | None:
    """Until when every one of these books is closed that is open at all; None where none is."""
    closed = ClosedBook.objects.filter(book__in=books).aggregate(until=Min("until"))
    until: datetime | None = closed["until"]
    return until


def use_by_hour_of_week(
    begins: datetime, ends: datetime, *, zone: str, book: int | None = None
) -> Mapping[tuple[int, int], Use]:
    """By (weekday, hour) on the clocks of `zone`; Monday is 1. What no closed hour tells of is not there."""
    return {(day, hour): Use(*rest) for day, hour, *rest in _rows(WEEK, begins, ends, book, zone)}


def use_by_hour(begins: datetime, ends: datetime, *, book: int | None = None) -> Mapping[datetime, Use]:
    """Of each full UTC hour that begins in [begins, ends) and that `book`, or any one, has closed."""
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
