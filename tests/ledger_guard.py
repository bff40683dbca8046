"""Passing the guards of the append-only tables, for tests only.

The triggers of accounting/migrations/0003 hold for everyone and honour no setting. Django empties the
database after each test with real transactions by TRUNCATE, which they refuse; so tests switch them off
around it, by DDL, in the same database transaction.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

APPEND_ONLY = (
    "accounting_ledgeraccount",
    "accounting_ledgertransaction",
    "accounting_ledgerentry",
    "accounting_usagesegment",
    "accounting_auditevent",
)


def switch_off(tables: Sequence[str]) -> list[str]:
    return [f"ALTER TABLE {table} DISABLE TRIGGER append_only" for table in tables]


def switch_on(tables: Sequence[str]) -> list[str]:
    return [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only" for table in tables]


@pytest.fixture(autouse=True, scope="session")
def flush_passes_the_guards() -> Iterator[None]:
    """Lets Django empty the test database."""
    from django.db.backends.postgresql.operations import DatabaseOperations  # noqa: PLC0415

    original = DatabaseOperations.sql_flush

    def sql_flush(self: DatabaseOperations, style: Any, tables: Sequence[str], **how: Any) -> list[str]:
        guarded = [table for table in APPEND_ONLY if table in tables]
        return [*switch_off(guarded), *original(self, style, tables, **how), *switch_on(guarded)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        yield


@contextmanager
def without_guards() -> Iterator[None]:
    """All user triggers and checks of commits off inside, to forge what `verify_ledger` must find."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in APPEND_ONLY:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # no table is altered while checks wait for it
        for table in APPEND_ONLY:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
            for (name,) in _own_triggers(table):
                cursor.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")


def _own_triggers(table: str) -> list[tuple[str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal", [table]
        )
        return cursor.fetchall()
