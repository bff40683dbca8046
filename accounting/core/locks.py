"""PostgreSQL advisory locks, which ensure that only one worker at a time does a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from django.db import connection


class OutboxLock(IntEnum):
    """Lists the advisory locks of the outboxes of mail, webhooks and notifications.

    A PostgreSQL advisory lock is identified by two integers. Each value here is the first of these integers. The other
    values that Fairlot uses as first integers are in scheduling/core/locks.py.
    """

    MAILS = 7_108
    WEBHOOKS = 7_109
    NOTIFICATIONS = 7_130


@contextmanager
def only_one(lock: int, key: int = 0) -> Iterator[bool]:
    """Context manager that tries to take an advisory lock without waiting, and yields whether it got the lock.

    `lock` and `key`: the two integers that identify the lock. The lock is held until the block ends or the connection
    is lost. Use it outside transactions only.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [lock, key])
        is_mine = bool(cursor.fetchone()[0])
        try:
            yield is_mine
        finally:
            if is_mine:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [lock, key])
