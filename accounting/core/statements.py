"""Prepared statements, which PostgreSQL parses and plans once per connection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

_numbers = count(1)
# The numbers of the statements that a psycopg2 connection has prepared.
_prepared: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
# Statements that still exist, by number. A connection deallocates all other statements when it next prepares one.
_in_use: WeakValueDictionary[int, Statement] = WeakValueDictionary()


class Statement:
    """Represents a prepared statement: SQL with parameters $1, $2, …, and the PostgreSQL types of the parameters.

    Use it only where one query plan suits all values, for example for look-ups by primary key. See `plan_once`.
    """

    def __init__(self, sql: str, *types: str) -> None:
        self._number = next(_numbers)
        _in_use[self._number] = self
        name = _name(self._number)
        self._prepare = f"PREPARE {name}{_listed(types)} AS {sql}"
        self._execute = f"EXECUTE {name}{_listed(['%s'] * len(types))}"

    def ask(self, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs the statement with these parameter values, and returns the rows as tuples."""
        with connection.cursor() as cursor:
            known = _prepared.setdefault(connection.connection, set())
            if self._number not in known:
                self._prepare_on(known)
            cursor.execute(self._execute, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def _prepare_on(self, known: set[int]) -> None:
        with connection.wrap_database_errors, connection.connection.cursor() as plain:
            for number in [number for number in known if number not in _in_use]:
                known.remove(number)  # first: a failure leaves only an unused statement
                plain.execute(f"DEALLOCATE {_name(number)}")
            plain.execute(self._prepare)
        known.add(self._number)


def plan_once() -> None:
    """Makes new connections of this process plan each prepared statement only once.

    By default, PostgreSQL makes a new plan for each of the first five executions, and then decides whether to reuse one
    general plan.
    """
    connection_created.connect(_plan_once, dispatch_uid="plan once")


def _plan_once(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")


def _name(number: int) -> str:
    return f"fairlot_{number}"


def _listed(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""
