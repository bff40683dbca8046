"""How well GPUs were used in closed hours: hour by hour, and by hour of the week."""

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

# A UTC hour counts in the local hour in which it begins, even if it ends half an hour into the next one.
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
    """GPU-seconds. `usable` is `capacity` without unheld GPUs that others used, that were drained or that were down."""

    busy: Decimal
    held: Decimal
    usable: Decimal
    capacity: Decimal

    @property
    def part_held(self) -> float | None:
        """Returns the held part of the capacity."""
        return float(self.held / self.capacity) if self.capacity else None

    @property
    def part_busy(self) -> float | None:
        return float(self.busy / self.capacity) if self.capacity else None


def closed_until(*, books: Iterable[int]) -> datetime | None:
    """Returns until when all open books among these are closed; None if none is open."""
    closed = ClosedBook.objects.filter(book__in=books).aggregate(until=Min("until"))
    until: datetime | None = closed["until"]
    return until


def use_by_hour_of_week(
    begins: datetime, ends: datetime, *, zone: str, book: int | None = None
) -> Mapping[tuple[int, int], Use]:
    """Returns use by (weekday, hour) in `zone`, without hours that no closed hour fell in; Monday is 1."""
    return {(day, hour): Use(*rest) for day, hour, *rest in _rows(WEEK, begins, ends, book, zone)}


def use_by_hour(begins: datetime, ends: datetime, *, book: int | None = None) -> Mapping[datetime, Use]:
    """Returns use by full UTC hour in [begins, ends), of hours that `book`, or any book, has closed."""
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
