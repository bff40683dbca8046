"""Writes hourly and daily rollups of usage when hours are closed. Reports are computed from these rollups.

Rollup rows never change. A correction of closed time adds a row with the difference, and the sum of all rows is the
valid value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from django.db import connection

from accounting.core.bulk import insert_rows
from accounting.core.calendar import DAY, HOUR, MICROSECOND, first_of_month, start_of_day, start_of_hour
from accounting.ledger.posting import Booking
from accounting.models import ClosedBook, JobDay, UsageDay, UsageHour, UsageSegment

# The segments of an hour or a day that are valid when it is closed: those that no correction has reversed yet.
_STANDS = """
      FROM accounting_usagesegment segment
     WHERE book = %(book)s AND month = %(month)s AND lower(period) >= %(begins)s AND lower(period) < %(ends)s
       AND NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                       WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
"""
# The class charges of hours that were settled before their day was closed.
_CHARGE = """
    coalesce((SELECT charge.amount FROM accounting_classcharge charge
              WHERE charge.segment_id = segment.id AND charge.month = segment.month), 0)
"""
_SUMS = "sum(gpu_seconds), sum(assembling), sum(idle), sum(cost), count(*)"
_COLUMNS = "gpu_seconds, assembling, idle, cost, segments"
USAGE_HOURS = f"""
    INSERT INTO accounting_usagehour (
        transaction_id, book, month, hour, tenant_id, user_id, generation_id, currency, {_COLUMNS})
    SELECT %(booked)s, book, month, %(begins)s, tenant_id, user_id, generation_id, currency, {_SUMS}
    {_STANDS} GROUP BY book, month, tenant_id, user_id, generation_id, currency
"""
USAGE_DAYS = f"""
    INSERT INTO accounting_usageday (
        transaction_id, book, month, hour, tenant_id, user_id, generation_id, currency, {_COLUMNS})
    SELECT %(booked)s, book, month, %(begins)s, tenant_id, user_id, generation_id, currency, sum(gpu_seconds),
           sum(assembling), sum(idle), sum(cost), sum(segments)
      FROM accounting_usagehour
     WHERE book = %(book)s AND month = %(month)s AND hour >= %(begins)s AND hour < %(ends)s
     GROUP BY book, month, tenant_id, user_id, generation_id, currency
"""  # noqa: S608 - own names
JOB_DAYS = f"""
    INSERT INTO accounting_jobday (
        transaction_id, book, month, hour, job_id, job_name, tenant_id, user_id, generation_id, currency, {_COLUMNS})
    SELECT %(booked)s, book, month, %(begins)s, job_id, max(job_name), tenant_id, user_id, generation_id, currency,
           sum(gpu_seconds), sum(assembling), sum(idle), sum(cost + {_CHARGE}), count(*)
    {_STANDS} GROUP BY book, month, job_id, tenant_id, user_id, generation_id, currency
"""


def write_usage_hours(*, transaction_id: int, book: int, hour: datetime) -> None:
    _write(USAGE_HOURS, transaction_id, book, hour, hour + HOUR)


def write_days(*, transaction_id: int, book: int, day: datetime) -> None:
    """Writes the rollups of one day (UTC). All hours of the day must have rollups already."""
    _write(USAGE_DAYS, transaction_id, book, day, day + DAY)
    _write(JOB_DAYS, transaction_id, book, day, day + DAY)


def _write(statement: str, transaction_id: int, book: int, begins: datetime, ends: datetime) -> None:
    values: dict[str, Any] = {
        "booked": transaction_id,
        "book": book,
        "month": first_of_month(begins),
        "begins": begins,
        "ends": ends,
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def correct_sums(*, book: int, bookings: Sequence[Booking]) -> None:
    """Adds rows to the rollups of closed hours and days, with the differences that the stored bookings cause.

    The bookings are corrections, usage that is posted again, and class charges (differences due to prices for idle,
    preemptible or borrowed time). The caller must hold the lock on the ClosedBook row of `book`, so that no hour is
    closed at the same time.
    """
    held = ClosedBook.objects.filter(book=book).first()
    if held is None:
        return
    changes = [
        change
        for booking in bookings
        for change in _changes(booking)
        if held.since <= change.segment.period.lower < held.until
    ]
    insert_rows(_sums_of(UsageHour, changes, start_of_hour, HOLDER))
    first, last = start_of_day(held.since - MICROSECOND) + DAY, start_of_day(held.until)
    whole_days = [change for change in changes if first <= change.segment.period.lower < last]
    insert_rows(_sums_of(UsageDay, whole_days, start_of_day, HOLDER))
    insert_rows(_sums_of(JobDay, whole_days, start_of_day, (*HOLDER, "job_id", "job_name")))


HOLDER = ("book", "month", "tenant_id", "user_id", "generation_id", "currency")
AMOUNTS = ("gpu_seconds", "assembling", "idle", "cost")  # `_changes` relies on the cost being last
Sums = TypeVar("Sums", UsageHour, UsageDay, JobDay)


@dataclass(frozen=True, slots=True)
class _Change:
    """Represents the amounts that one transaction adds to the hourly and daily rollups because of one usage segment.

    `booked`: the id of the transaction. `segments`: what is added to the number of segments: 1 for a new segment, -1
    for a reversal, 0 for a class charge.
    """

    segment: UsageSegment
    booked: int
    segments: int
    amounts: Sequence[Decimal]  # in the order of AMOUNTS


def _changes(booking: Booking) -> Iterator[_Change]:
    booked = booking.transaction.pk
    for sign, segments in ((-1, booking.takes_back), (1, booking.segments)):
        for one in segments:
            yield _Change(one, booked, sign, [sign * getattr(one, name) for name in AMOUNTS])
    for sign, charges in ((-1, booking.charges_back), (1, booking.charges)):
        for charge in charges:
            amounts = [Decimal(0)] * (len(AMOUNTS) - 1) + [sign * charge.amount]
            yield _Change(charge.segment, booked, 0, amounts)


def _sums_of(
    model: type[Sums], changes: Iterable[_Change], start: Callable[[datetime], datetime], names: Sequence[str]
) -> Iterable[Sums]:
    sums: dict[tuple[object, ...], Sums] = {}
    for change in changes:
        told: dict[str, Any] = {name: getattr(change.segment, name) for name in names}
        hour = start(change.segment.period.lower)
        key = (change.booked, hour, *told.values())
        if key not in sums:
            nothing = dict.fromkeys(AMOUNTS, Decimal(0))
            sums[key] = model(transaction_id=change.booked, hour=hour, segments=0, **told, **nothing)
        row = sums[key]
        row.segments += change.segments
        for name, amount in zip(AMOUNTS, change.amounts, strict=True):
            setattr(row, name, getattr(row, name) + amount)
    return sums.values()
