"""Provides a read-only transaction in which all queries see the same state of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def consistent_read() -> Iterator[None]:
    """Context manager for a read-only transaction in which all queries see the database as it was at the first query.

    Inside another transaction this has no effect, because PostgreSQL sets the isolation level when a transaction
    begins. The outer transaction then decides what the queries see.

    This context manager caches nothing. To query data only once in a report, pass an object such as `UsageReader`
    (accounting/usage/reader.py) to the functions that need the data.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
