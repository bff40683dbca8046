"""The database's clock, which is the same for all processes on all machines; and users' time zones."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import connection


def now_from_database() -> datetime:
    """Returns the present time in UTC. The time advances within a transaction, unlike that of `Now()`."""
    return provider()


def read_database() -> datetime:
    """Returns the database server's present time in UTC."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


# Tests set another clock here (tests/clock.py), and all modules then use it.
provider = read_database


def zone_named(name: str) -> ZoneInfo:
    """Returns the time zone with that name; UTC if the name is unknown here.

    A user may have saved the name on a machine with newer time zone data.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
