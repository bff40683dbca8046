"""Advisory locks of PostgreSQL: one writer a cluster's schedule, one active watcher."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    """First key of a lock; the second is the cluster's id. Other ones are in accounting/core/locks.py."""

    SCHEDULE = 7_101
    WATCH = 7_102
    ATTACHMENT = 7_103
    ANNOUNCEMENT = 7_104  # its second key is a service's id
    ANALYSIS = 7_105  # its second key is the number of a place
    LIMITS = 7_106  # its second key is 0: of all clusters
    REPORTS = 7_107  # the same
    TEAM_UIDS = 7_111  # the same; accounting has the numbers in between
    FORECASTS = 7_112
    SHADOW = 7_113


def lock_schedule(cluster_id: int) -> None:
    """Waits for the right to change a cluster's leases, until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])


def lock_schedules(cluster_ids: Iterable[int]) -> None:
    """Like `lock_schedule` of several clusters, in one order, so that two who do this wait and no more."""
    for cluster_id in sorted(set(cluster_ids)):
        lock_schedule(cluster_id)


def try_lock_schedule(cluster_id: int) -> bool:
    """The same, but leaves at once with False when somebody else has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_forecasts(cluster_id: int) -> bool:
    """Whether this transaction may write when the cluster's jobs start; leaves at once when another one does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.FORECASTS, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_shadow(cluster_id: int) -> bool:
    """Whether this transaction may ask the policy beside the cluster's own; leaves at once when another one does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SHADOW, cluster_id])
        return bool(cursor.fetchone()[0])


def lock_limits() -> None:
    """Waits for the right to give out, on any cluster, what limits leave.

    Whoever locks a schedule, too, has done so before.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.LIMITS, 0])


def lock_team_uids() -> None:
    """Waits for the right to give a team a user of the portal's machine, until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.TEAM_UIDS, 0])


def stay_attached(cluster_id: int) -> None:
    """Until the transaction ends, nobody detaches the cluster; many may hold this at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def lock_attachment(cluster_id: int) -> None:
    """Waits until nobody relies on the cluster being attached, until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def try_lock_watch(cluster_id: int) -> bool:
    """Whether this connection may watch the cluster; held until the connection closes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.WATCH, cluster_id])
        return bool(cursor.fetchone()[0])
