"""Functions for hours, days and months in UTC, which are the periods of the ledger."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

MICROSECOND, HOUR, DAY = timedelta(microseconds=1), timedelta(hours=1), timedelta(days=1)


def start_of_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def start_of_day(moment: datetime) -> datetime:
    return start_of_hour(moment).replace(hour=0)


def first_hour(moment: datetime) -> datetime:
    """Returns the first full UTC hour that begins at or after `moment`."""
    return start_of_hour(moment.astimezone(UTC) - MICROSECOND) + HOUR


def hours_beginning_in(begins: datetime, ends: datetime) -> tuple[datetime, datetime]:
    """Returns the start and the end of the full UTC hours that begin in [begins, ends).

    In time zones with an offset of half an hour, a local day starts in the middle of a UTC hour. This rule assigns each
    UTC hour to exactly one of two adjoining periods.
    """
    return first_hour(begins), first_hour(ends)


def first_of_month(moment: datetime) -> date:
    """Returns the first day of the month (UTC) that contains `moment`."""
    return moment.astimezone(UTC).date().replace(day=1)


def start_of_month(month: date) -> datetime:
    """Returns the moment (UTC) at which the month begins. `month` is the first day of the month."""
    return datetime.combine(month, time(), UTC)


def months_after(first: date, count: int) -> date:
    """Returns the first day of the month that is `count` months after the month that begins on `first`."""
    year, month = divmod(first.year * 12 + first.month - 1 + count, 12)
    return date(year, month + 1, 1)
