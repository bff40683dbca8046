"""Bypasses the triggers that guard the append-only tables, for tests only.

The triggers of accounting/migrations apply to all database users, and no setting disables them. After tests with
real transactions Django empties the database by TRUNCATE, which the triggers refuse. So tests disable the triggers
by DDL and enable them again in the same database transaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

APPEND_ONLY = (
    "accounting_ledgeraccount",
    "accounting_ledgertransaction",
    "accounting_ledgerentry",
    "accounting_usagesegment",
    "accounting_correctedsegment",
    "accounting_capacitysegment",
    "accounting_classcharge",
    "accounting_nodehour",
    "accounting_usagehour",
    "accounting_usageday",
    "accounting_jobday",
    "accounting_ledgerseal",
    "accounting_sealedbook",
    "accounting_ledgerhead",
    "accounting_auditevent",
    "accounting_archiverecord",
)


# Tables that a trigger of another name guards, with the name of that trigger.
OTHERWISE = {"scheduling_idlestretch": "keep_billed"}
CHANGES = (
    "scheduling_nodechange",
    "accounting_ticketchange",
    "accounting_quotachange",
    "accounting_budgetchange",
)
KEPT = (*APPEND_ONLY, *CHANGES, *OTHERWISE)
# Django writes the rows of these tables after migrations, and no test changes them.
OF_MIGRATIONS = {"auth_permission", "django_content_type"}
# The commands that enable the triggers of some tables as they are enabled now.
AS_THEY_ARE = """
    SELECT format('ALTER TABLE %%s %%s TRIGGER %%I', tgrelid::regclass,
                  CASE tgenabled WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname)
    FROM pg_trigger WHERE tgrelid = ANY(%s::regclass[]) AND NOT tgisinternal
"""
WITHOUT_REFERENCES = "SET LOCAL session_replication_role = replica"


def with_partitions(tables: Sequence[str]) -> list[str]:
    """Returns these tables and their monthly partitions, because each partition has its own triggers."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = ANY(%s::regclass[]) AND inhrelid::regclass::text LIKE %s",
            [list(tables), "accounting\\_%"],
        )
        return [*tables, *(name for (name,) in cursor.fetchall())]


def root_of(table: str) -> str:
    """Returns the partitioned table to which the partition `table` belongs, or `table` if it is not a partition."""
    return next((kept for kept in KEPT if table.startswith(f"{kept}_")), table)


def not_empty(tables: Sequence[str]) -> list[str]:
    """Returns the names of the tables that contain rows."""
    with connection.cursor() as cursor:
        # Most tables have never contained rows, and so have no pages. Planning a look into each would take longest.
        cursor.execute(
            "SELECT name FROM unnest(%s::text[]) name WHERE pg_relation_size(name::regclass) > 0",
            [list(tables)],
        )
        looks = " UNION ALL ".join(
            f"SELECT '{table}' WHERE EXISTS (SELECT FROM ONLY {table})"  # noqa: S608 - own names
            for (table,) in cursor.fetchall()
        )
        if looks:
            cursor.execute(looks)
        return [name for (name,) in cursor.fetchall()]


def guard_of(table: str) -> str:
    return OTHERWISE.get(table, "append_only")


def switch_off(tables: Sequence[str]) -> list[str]:
    return [f"ALTER TABLE {table} DISABLE TRIGGER {guard_of(table)}" for table in tables]


def switch_on(tables: Sequence[str]) -> list[str]:
    return [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {guard_of(table)}" for table in tables]


@pytest.fixture(autouse=True, scope="session")
def flush_passes_the_guards() -> Iterator[None]:
    """Lets Django empty the test database in spite of the triggers, and makes this faster.

    Only tables that contain rows are emptied, because most tables are empty. The rows that Django writes after
    migrations are kept, so that Django need not write them again.
    """
    from django.core.management.commands import flush  # noqa: PLC0415
    from django.db.backends.postgresql.operations import DatabaseOperations  # noqa: PLC0415

    original = DatabaseOperations.sql_flush

    def sql_flush(self: DatabaseOperations, style: Any, tables: Sequence[str], **how: Any) -> list[str]:
        tables = [table for table in tables if table not in OF_MIGRATIONS]
        if how.get("reset_sequences"):
            guarded = with_partitions([table for table in KEPT if table in tables])
            return [*switch_off(guarded), *original(self, style, tables, **how), *switch_on(guarded)]
        full = not_empty(with_partitions(tables))
        guarded = [table for table in full if root_of(table) in KEPT]
        deletes = [f"DELETE FROM {table}" for table in full]  # noqa: S608 - own names
        # The referring rows are deleted in the same transaction, in any order, so foreign keys need no check.
        return [WITHOUT_REFERENCES, *switch_off(guarded), *deletes, *switch_on(guarded)] if full else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_, **__: None)
        yield


@contextmanager
def without_guards() -> Iterator[None]:
    """Disables the triggers and deferred constraints of the append-only tables, so that a test can forge rows that
    `verify_ledger` must find."""
    with without_triggers(*with_partitions(APPEND_ONLY)):
        yield


@contextmanager
def without_triggers(*tables: str) -> Iterator[None]:
    """Disables the triggers of these tables, so that a test can create rows of the past."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(AS_THEY_ARE, [list(tables)])
        again = [command for (command,) in cursor.fetchall()]
        _alter(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in tables)
        yield
        # PostgreSQL cannot alter a table while deferred constraints are pending
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        _alter(again)


def _alter(commands: Iterable[str]) -> None:
    """Executes the commands in one call, which is faster than one call for each."""
    if together := ";".join(commands):
        with connection.cursor() as cursor:
            cursor.execute(together)
