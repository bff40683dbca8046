"""PostgreSQL advisory locks, with which only one worker at a time does a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from django.db import connection


class OutboxLock(IntEnum):
    """First keys of the advisory locks of outboxes; scheduling/core/locks.py has further keys."""

    LETTERS = 7_108
    WEBHOOKS = 7_109


@contextmanager
def only_one(lock: int, key: int = 0) -> Iterator[bool]:
    """Context manager that tries to take an advisory lock, and yields whether it got the lock.

    The lock is held until the block ends or the connection is lost. Use it outside transactions.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [lock, key])
        is_mine = bool(cursor.fetchone()[0])
        try:
            yield is_mine
        finally:
            if is_mine:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [lock, key])
