"""Reading much that must fit together, while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import connection, transaction

P = ParamSpec("P")
T = TypeVar("T")
_known: ContextVar[dict[Any, Any] | None] = ContextVar("known at this moment", default=None)


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


def read_once(read: Callable[P, T]) -> Callable[P, T]:
    """Within one moment `read` is asked once for the same, as it can only say the same again; else each time."""

    @wraps(read)
    def reader(*args: P.args, **kwargs: P.kwargs) -> T:
        known = _known.get()
        if known is None:
            return read(*args, **kwargs)
        asked = read, args, tuple(kwargs.items())
        if asked not in known:
            known[asked] = read(*args, **kwargs)
        found: T = known[asked]
        return found

    return reader
