"""PostgreSQL advisory locks, such as the lock of a cluster's schedule and that of its active watcher."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    """The first key of each advisory lock; unless noted, the second key is the cluster's id.

    accounting/core/locks.py has other locks.
    """

    SCHEDULE = 7_101
    WATCH = 7_102
    ATTACHMENT = 7_103
    ANNOUNCEMENT = 7_104  # second key: the service's id
    ANALYSIS = 7_105  # second key: the number of the analysis slot
    LIMITS = 7_106  # second key: 0, as the lock is for all clusters
    REPORTS = 7_107  # second key: 0
    TEAM_UIDS = 7_111  # second key: 0; accounting uses the numbers in between
    FORECASTS = 7_112
    SHADOW = 7_113


def lock_schedule(cluster_id: int) -> None:
    """Waits for the lock of a cluster's schedule, which changes of leases need; keeps it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])


def lock_schedules(cluster_ids: Iterable[int]) -> None:
    """Waits for the locks of several clusters' schedules, in order of id, so that concurrent callers never deadlock."""
    for cluster_id in sorted(set(cluster_ids)):
        lock_schedule(cluster_id)


def try_lock_schedule(cluster_id: int) -> bool:
    """Takes the lock of a cluster's schedule until the transaction ends; returns False at once if another one
    holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_forecasts(cluster_id: int) -> bool:
    """Takes the lock for a cluster's start forecasts until the transaction ends; returns False at once if another one
    holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.FORECASTS, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_shadow(cluster_id: int) -> bool:
    """Takes the lock for a cluster's shadow rounds until the transaction ends; returns False at once if another one
    holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SHADOW, cluster_id])
        return bool(cursor.fetchone()[0])


def lock_limits() -> None:
    """Waits for the lock on usage of limits across clusters; keeps it until the transaction ends.

    Allocations on several clusters may use the same limit. A caller that also locks a schedule locks the schedule
    first.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.LIMITS, 0])


def lock_team_uids() -> None:
    """Waits for the lock for assigning UIDs to teams; keeps it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.TEAM_UIDS, 0])


def stay_attached(cluster_id: int) -> None:
    """Prevents detaching the cluster until the transaction ends. The lock is shared: many transactions may hold it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def lock_attachment(cluster_id: int) -> None:
    """Waits until no transaction relies on the cluster being attached; keeps the exclusive lock until the transaction
    ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def try_lock_watch(cluster_id: int) -> bool:
    """Takes the lock of the cluster's watcher for this database connection, until the connection closes.

    Returns False at once if another connection has it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.WATCH, cluster_id])
        return bool(cursor.fetchone()[0])
