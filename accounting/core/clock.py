"""The one clock, which is the database's and the same for every process on every machine; and users' time zones."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import connection


def now_from_database() -> datetime:
    """Returns the present moment in UTC. It advances within a transaction, unlike `Now()`."""
    return provider()


def read_database() -> datetime:
    """Asks the database for the present moment."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


# Tests put another clock here (tests/clock.py), which all modules then read.
provider = read_database


def zone_named(name: str) -> ZoneInfo:
    """Returns the zone with that name; UTC if this machine's data lack it, which the machine that saved it may have."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
