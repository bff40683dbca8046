"""Journals: append-only tables outside the ledger's books that the hash chain also covers, such as the audit trail.

In the hash chain, each journal counts as a book with a negative number. A row's leaf (digest) covers only the columns
that are listed here. To cover a column that is added later, a new version of the leaf format is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import OperationalError, connection, transaction

# Writers of a journal wait at most this long for its sealing. If sealing does not get the lock in this time, it tries
# again a minute later.
PATIENCE = "200ms"


@dataclass(frozen=True, slots=True)
class Journal:
    """Represents an append-only table that the hash chain covers row by row.

    `row`: the word for a row in messages. `columns`: SQL for the covered columns. `written`: the column with the time
    at which the database wrote the row; SQL NULL if the table has no such column.
    """

    book: int
    table: str
    row: str
    columns: str
    written: str = "NULL::timestamptz"

    @property
    def leaves(self) -> str:
        """Returns an SQL query for rows of the journal. Its columns are id, key (a name for messages), leaf (digest),
        and false.

        The last column says whether the row is archived; rows of journals never are. The query has four parameters: the
        journal's number, the lower bound of the ids (excluded), the upper bound, and the maximum number of rows.
        """
        return f"""
            SELECT id, '{self.row} ' || id AS key,
                   int8send(id) || sha256(convert_to(
                       jsonb_build_array('{self.table}', id, {self.columns})::text, 'UTF8')),
                   false AS archived
            FROM {self.table} WHERE {self.book} = %s AND id > %s AND id <= %s ORDER BY id LIMIT %s
        """  # noqa: S608 - own names


def micros(column: str) -> str:
    """Returns the SQL expression that converts a time column to microseconds since 1970.

    Unlike PostgreSQL's text form of a time, this value is the same on every server.
    """
    return f"(extract(epoch FROM {column}) * 1000000)::bigint"


_SUM = (
    f"transaction_id, book, month, {micros('hour')}, tenant_id, user_id, generation_id, gpu_seconds, assembling, idle,"
    " cost, currency, segments"
)
JOURNALS: dict[int, Journal] = {
    one.book: one
    for one in (
        Journal(
            -1,
            "accounting_auditevent",
            "audit event",
            f"{micros('at')}, actor_id, actor_name, verb, target_type, target_id, target_name, tenant_id,"
            " before, after",
            "at",
        ),
        Journal(
            -2, "accounting_ticketchange", "ticket change", f"tenant_id, user_id, tickets, {micros('at')}", "at"
        ),
        Journal(
            -3,
            "accounting_quotachange",
            "limit change",
            "quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, \"limit\","
            f" {micros('at')}",
            "at",
        ),
        Journal(-4, "accounting_budgetchange", "budget change", f"tenant_id, period, amount, {micros('at')}", "at"),
        Journal(-5, "accounting_ledgeraccount", "account", "kind, unit, generation_id, tenant_id, user_id"),
        Journal(-6, "accounting_usagehour", "usage hour", _SUM),
        Journal(-7, "accounting_usageday", "usage day", _SUM),
        Journal(-8, "accounting_jobday", "job day", f"{_SUM}, job_id, job_name"),
        # -9 is the journal of scheduling/leases/verification.py.
        Journal(
            -10,
            "accounting_archiverecord",
            "archive record",
            f"month, is_archived, rows, digests, seals, {micros('at')}",
            "at",
        ),
    )
}  # fmt: skip


def name_of(book: int) -> str:
    """Returns the name of a book for messages: "book 7" for a cluster's ledger, or "audit events" for a journal."""
    return f"{JOURNALS[book].row}s" if book in JOURNALS else f"book {book}"


def register(journal: Journal) -> None:
    """Adds a journal whose table another package defines, so that the hash chain also covers this table."""
    JOURNALS[journal.book] = journal


def settled_until(journal: Journal) -> int | None:
    """Returns the highest id in the journal's table. All rows that are committed later have higher ids.

    Returns None if other transactions lock the table for longer than PATIENCE (200 ms).
    """
    try:
        with transaction.atomic(durable=True), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
            # Writers lock the table too, before a new row gets its id. So no lower id is uncommitted now.
            cursor.execute(f"LOCK TABLE ONLY {journal.table} IN SHARE MODE")
            return last_id(journal)
    except OperationalError as error:
        if getattr(error.__cause__, "pgcode", None) != LOCK_NOT_AVAILABLE:
            raise
        return None


LOCK_NOT_AVAILABLE = "55P03"


def last_id(journal: Journal) -> int:
    """Returns the highest id in the journal's table; 0 if the table is empty."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT coalesce(max(id), 0) FROM {journal.table}")  # noqa: S608 - own names
        (last,) = cursor.fetchone()
    return int(last)
