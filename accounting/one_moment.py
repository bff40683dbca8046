"""Reading much that must fit together, while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from django.db import connection, transaction

T = TypeVar("T")
_known: ContextVar[dict[Callable[[], Any], Any] | None] = ContextVar("known at this moment", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is of one moment of the database; nothing may be written.

    Inside a transaction of the caller's it does nothing: how that one sees the database was decided when it began.
    """
    if connection.in_atomic_block:
        yield
        return
    known = _known.set({})
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    finally:
        _known.reset(known)


def read_once(read: Callable[[], T]) -> Callable[[], T]:
    """Within one moment `read` is asked once, as it can only say the same again; else each time."""

    @wraps(read)
    def reader() -> T:
        known = _known.get()
        if known is None:
            return read()
        if reader not in known:
            known[reader] = read()
        found: T = known[reader]
        return found

    return reader
