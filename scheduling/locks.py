"""Advisory locks of PostgreSQL: one writer a cluster's schedule, one active watcher."""

from __future__ import annotations

from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    """First key of a lock; the second is the cluster's id."""

    SCHEDULE = 7_101
    WATCH = 7_102


def lock_schedule(cluster_id: int) -> None:
    """Waits for the right to change a cluster's leases, until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])


def try_lock_schedule(cluster_id: int) -> bool:
    """The same, but leaves at once with False when somebody else has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_watch(cluster_id: int) -> bool:
    """Whether this connection may watch the cluster; held until the connection closes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.WATCH, cluster_id])
        return bool(cursor.fetchone()[0])
