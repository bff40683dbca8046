"""The database's clock, which all processes share, and the time zones of users."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import connection


def now_from_database() -> datetime:
    """Returns the present time in UTC from the database's clock, or from the clock that a test has set.

    Unlike SQL's `Now()`, which returns the start of the transaction, the returned time advances within a transaction.
    """
    return provider()


def read_database() -> datetime:
    """Reads the database server's present time and returns it in UTC.

    `now_from_database` calls this function, except in tests that set another clock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


# Tests set another clock here (tests/clock.py), and all modules then use it.
provider = read_database


def zone_named(name: str) -> ZoneInfo:
    """Returns the time zone with that name; UTC if this machine does not know the name.

    A name may be unknown because the user saved it on a machine with newer time zone data.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
