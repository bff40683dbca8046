"""PostgreSQL advisory locks: one writer per cluster schedule, one active watcher."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    """First key of a lock; the second is the cluster's id unless noted. accounting/core/locks.py has other locks."""

    SCHEDULE = 7_101
    WATCH = 7_102
    ATTACHMENT = 7_103
    ANNOUNCEMENT = 7_104  # second key: the service's id
    ANALYSIS = 7_105  # second key: the number of the analysis slot
    LIMITS = 7_106  # second key: 0, for all clusters
    REPORTS = 7_107  # second key: 0
    TEAM_UIDS = 7_111  # second key: 0; accounting uses the numbers in between
    FORECASTS = 7_112
    SHADOW = 7_113


def lock_schedule(cluster_id: int) -> None:
    """Waits for the right to change a cluster's leases and keeps it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])


def lock_schedules(cluster_ids: Iterable[int]) -> None:
    """Locks the schedules of several clusters in one fixed order, so that concurrent callers cannot deadlock."""
    for cluster_id in sorted(set(cluster_ids)):
        lock_schedule(cluster_id)


def try_lock_schedule(cluster_id: int) -> bool:
    """Locks a cluster's schedule if it is free; returns False at once if it is not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SCHEDULE, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_forecasts(cluster_id: int) -> bool:
    """Locks the writing of a cluster's start forecasts if that is free; returns False at once if it is not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.FORECASTS, cluster_id])
        return bool(cursor.fetchone()[0])


def try_lock_shadow(cluster_id: int) -> bool:
    """Locks the questions to a cluster's shadow policy if they are free; returns False at once if they are not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [Lock.SHADOW, cluster_id])
        return bool(cursor.fetchone()[0])


def lock_limits() -> None:
    """Waits for the right to allocate, on any cluster, what limits leave.

    A caller that also locks a schedule takes that lock first.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.LIMITS, 0])


def lock_team_uids() -> None:
    """Waits for the right to assign a local system user to a team and keeps it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.TEAM_UIDS, 0])


def stay_attached(cluster_id: int) -> None:
    """Keeps the cluster attached until the transaction ends; many transactions may do so at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def lock_attachment(cluster_id: int) -> None:
    """Waits until no transaction relies on the cluster being attached; keeps the lock until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [Lock.ATTACHMENT, cluster_id])


def try_lock_watch(cluster_id: int) -> bool:
    """Returns whether this connection may watch the cluster; it keeps that right until it closes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [Lock.WATCH, cluster_id])
        return bool(cursor.fetchone()[0])
