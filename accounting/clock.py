"""The one clock: the database's, the same for every process on every machine."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection


def now_from_database() -> datetime:
    """The present moment in UTC. Goes on inside a transaction, unlike `Now()`, which stands still."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)
