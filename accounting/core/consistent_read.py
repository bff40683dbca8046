"""A transaction in which all queries see the same state of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def consistent_read() -> Iterator[None]:
    """Opens a read-only transaction whose queries all see the database as it was at the first of them.

    Inside a transaction it opens none, as PostgreSQL sets the isolation level when a transaction begins: then the
    caller's transaction decides what the queries see. What several queries of one report have in common is read once
    by an object that is passed to them, such as `UsageReader` (accounting/usage/reader.py), not by this function.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
