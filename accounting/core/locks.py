"""PostgreSQL advisory locks that let one worker at a time do something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from django.db import connection


class OutboxLock(IntEnum):
    """First key of a lock; others are in scheduling/core/locks.py."""

    LETTERS = 7_108
    WEBHOOKS = 7_109


@contextmanager
def only_one(lock: int, key: int = 0) -> Iterator[bool]:
    """Yields whether nobody else does it now; use it outside transactions.

    Nobody else begins until the block is left or the connection is lost.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [lock, key])
        is_mine = bool(cursor.fetchone()[0])
        try:
            yield is_mine
        finally:
            if is_mine:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [lock, key])
