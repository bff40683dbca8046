"""A read-only transaction in which all queries see the same state of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def consistent_read() -> Iterator[None]:
    """Context manager for a read-only transaction in which all queries see the database as the first of them saw it.

    Inside another transaction it has no effect, because PostgreSQL sets the isolation level when a transaction
    begins; the caller's transaction then decides what the queries see. Data that several queries of one report share
    is not cached here: an object that is passed to the queries reads it once, such as `UsageReader`
    (accounting/usage/reader.py).
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
