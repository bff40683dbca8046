"""PostgreSQL advisory locks. For example, a cluster's scheduling lock protects its leases, and another lock ensures
that only one process watches the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    """The kinds of PostgreSQL advisory locks. Two integers identify such a lock: the value from this class and the
    cluster's ID. A comment beside the value says if the second integer is not the cluster's ID.

    accounting/core/locks.py defines more kinds of locks.
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
    """Waits for the cluster's scheduling lock, and holds it until the transaction ends.

    Code that changes leases must hold this lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])


def lock_schedules(cluster_ids: Iterable[int]) -> None:
    """Waits for the scheduling locks of several clusters, and holds them until the transaction ends.

    Takes the locks in order of cluster ID, so that concurrent callers never deadlock.
    """
    for cluster_id in sorted(set(cluster_ids)):
        lock_schedule(cluster_id)


def try_lock_schedule(cluster_id: int) -> bool:
    """Takes the cluster's scheduling lock until the transaction ends, and returns True.

    Returns False without waiting if another transaction holds the lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_forecasts(cluster_id: int) -> bool:
    """Takes the lock for a cluster's start forecasts until the transaction ends, and returns True.

    Returns False without waiting if another transaction holds the lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.FORECASTS, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_shadow(cluster_id: int) -> bool:
    """Takes the lock for the rounds of a cluster's shadow policy until the transaction ends, and returns True.

    Returns False without waiting if another transaction holds the lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SHADOW, cluster_id])
        return bool(cursor.fetchone()[0])


def lock_limits() -> None:
    """Waits for the lock on limits, and holds it until the transaction ends.

    The lock keeps two callers from allocating the same remaining GPUs or hours of a limit. It covers all clusters,
    because a limit may count GPUs of several clusters. A caller that also needs a cluster's scheduling lock must take
    the scheduling lock first.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.LIMITS, 0])


def lock_team_uids() -> None:
    """Waits for the lock for assigning UIDs (Unix user IDs) to teams, and holds it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.TEAM_UIDS, 0])


def stay_attached(cluster_id: int) -> None:
    """Prevents the cluster from being detached until the transaction ends.

    Takes a shared lock, which many transactions may hold at the same time.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def lock_attachment(cluster_id: int) -> None:
    """Waits until no transaction holds the shared lock of `stay_attached`. Then holds the exclusive lock until the
    transaction ends.

    Detaching a cluster needs this lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def try_lock_watch(cluster_id: int) -> bool:
    """Takes the lock that allows this process to watch the cluster, and returns True. The database connection holds the
    lock until it closes.

    Returns False without waiting if another connection holds the lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.WATCH, cluster_id])
        return bool(cursor.fetchone()[0])
