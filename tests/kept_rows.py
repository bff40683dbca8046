"""Builds a state of the database once in a process, and restores it for each further test that needs it.

Restoring takes a fraction of the time of building, for example of closing two days of a ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import date
from typing import Any, TypeVar

from django.db import connection

from accounting.ledger.partitions import add_months
from tests.ledger_guard import OF_MIGRATIONS, WITHOUT_REFERENCES, with_partitions, without_triggers

T = TypeVar("T")
# Whole tables, without the monthly partitions, and their columns without those that PostgreSQL computes.
TABLES = """
    SELECT held.relname, string_agg(quote_ident(attname), ', ' ORDER BY attnum)
    FROM pg_class held JOIN pg_attribute ON attrelid = held.oid
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
      AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND relname <> ALL(%s)
    GROUP BY held.oid ORDER BY held.oid
"""
PARTITIONS = """
    SELECT inhrelid::regclass::text, to_date(right(inhrelid::regclass::text, 7), 'YYYY_MM')
    FROM pg_inherits JOIN pg_class whole ON whole.oid = inhparent WHERE relkind = 'p'
"""
SEQUENCES = """
    SELECT array_agg(format('%I.%I', schemaname, sequencename)), array_agg(last_value) FROM pg_sequences
    WHERE schemaname = current_schema() AND last_value IS NOT NULL
"""
AT_LEAST = """
    SELECT setval(kept.name::regclass, greatest(kept.value, last_value))
    FROM unnest(%s::text[], %s::bigint[]) kept (name, value)
    JOIN pg_sequences ON format('%%I.%%I', schemaname, sequencename) = kept.name
"""


def inserts_of_rows() -> dict[str, str]:
    """Returns {table: SQL command that inserts the table's present rows}.

    The tables are in the order in which migrations created them. Empty tables and tables that migrations fill are left
    out.
    """
    inserts = {}
    with connection.cursor() as cursor:
        cursor.execute(TABLES, [[*OF_MIGRATIONS, "django_migrations"]])
        for table, columns in cursor.fetchall():
            cursor.execute(f"SELECT json_agg(held)::text FROM {table} held")  # noqa: S608 - own names
            (rows,) = cursor.fetchone()
            if rows is not None:
                read = f"SELECT {columns} FROM json_populate_recordset(null::{table}, %s)"  # noqa: S608
                inserts[table] = cursor.mogrify(f"INSERT INTO {table} ({columns}) {read}", [rows]).decode()
    return inserts


class Rows:
    """The rows of all tables when this object is created, and a way to insert them again.

    Leaves out the rows that migrations create. All other rows must come from the state to be kept.
    """

    def __init__(self) -> None:
        self.partitions = _partitions()
        inserts = inserts_of_rows()
        self.tables, self.script = list(inserts), ";".join(inserts.values())
        with connection.cursor() as cursor:
            cursor.execute(SEQUENCES)
            self.sequences = cursor.fetchone()

    def insert(self) -> None:
        """Inserts the rows, with their primary keys and without any check, into the empty database.

        Rows that are created afterwards get other keys.
        """
        add_months(month for _, month in self.partitions - _partitions())
        with without_triggers(*with_partitions(self.tables)), connection.cursor() as cursor:
            cursor.execute(WITHOUT_REFERENCES)
            cursor.execute(self.script)
            cursor.execute(AT_LEAST, self.sequences)
            cursor.execute("SET LOCAL session_replication_role = origin")


_kept: dict[Callable[[], Any], tuple[Any, Rows]] = {}


def kept(build: Callable[[], T]) -> T:
    """Returns what `build` returns. Afterwards the database contains the rows that `build` creates.

    Only the first call in a process runs `build`. Further calls insert the same rows, so `build` must need nothing but
    an empty database. Tests that compare with the present time must not use a kept state.
    """
    if build in _kept:
        made, rows = _kept[build]
        rows.insert()
    else:
        made = build()
        _kept[build] = made, Rows()
    own: T = copy.deepcopy(made)
    return own


def _partitions() -> set[tuple[str, date]]:
    """Returns (name, month) of each monthly partition."""
    with connection.cursor() as cursor:
        cursor.execute(PARTITIONS)
        return set(cursor.fetchall())
