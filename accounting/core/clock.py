"""The one clock: the database's, the same for every process on every machine; and the zones that users read it in."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import connection


def now_from_database() -> datetime:
    """The present moment in UTC. Goes on inside a transaction, unlike `Now()`, which stands still."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


def zone_named(name: str) -> ZoneInfo:
    """The zone of that name; UTC where this machine's data do not know it, as those that saved it may have done."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
