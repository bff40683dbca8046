"""Heads: one chain over the seals of all books and journals. What there is already is sealed and named here, once."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC
from typing import Any

from django.db import migrations, models

from accounting.ledger import signing

GUARD = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON accounting_ledgerhead
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE accounting_ledgerhead ENABLE ALWAYS TRIGGER append_only;
"""
MICROS = "(extract(epoch FROM {}) * 1000000)::bigint"
AT = MICROS.format("at")
SUM = (
    f"transaction_id, book, month, {MICROS.format('hour')}, tenant_id, user_id, generation_id, gpu_seconds, assembling,"
    " idle, cost, currency, segments"
)
# As accounting/ledger/journals.py had them when this was written.
JOURNALS = {
    -1: (
        "accounting_auditevent",
        f"{AT}, actor_id, actor_name, verb, target_type, target_id, target_name, tenant_id, before, after",
    ),
    -2: ("accounting_ticketchange", f"tenant_id, user_id, tickets, {AT}"),
    -3: (
        "accounting_quotachange",
        f'quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit", {AT}',
    ),
    -4: ("accounting_budgetchange", f"tenant_id, period, amount, {AT}"),
    -5: ("accounting_ledgeraccount", "kind, unit, generation_id, tenant_id, user_id"),
    -6: ("accounting_usagehour", SUM),
    -7: ("accounting_usageday", SUM),
    -8: ("accounting_jobday", f"{SUM}, job_id, job_name"),
}
AT_ONCE = 1000
ID_AND_LEAF = 40  # bytes


def seal_journals(apps: Any, schema_editor: Any) -> None:
    for book, (table, columns) in JOURNALS.items():
        seal_journal(schema_editor.connection, book, table, columns)


def seal_journal(connection: Any, book: int, table: str, columns: str) -> None:
    """Seals all rows of a table, as a book of its own; nobody writes to it meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN SHARE MODE")
        number, digest, last = 0, b"", 0
        while True:
            cursor.execute(
                f"SELECT id, int8send(id) || sha256(convert_to(jsonb_build_array('{table}', id, {columns})::text, 'UTF8'))"
                f" FROM {table} WHERE id > %s ORDER BY id LIMIT %s",
                [last, AT_ONCE],
            )
            rows = cursor.fetchall()
            if not rows:
                break
            leaves = b"".join(bytes(leaf) for _, leaf in rows)
            first, last, number = rows[0][0], rows[-1][0], number + 1
            cursor.execute("SELECT clock_timestamp()")
            (at,) = cursor.fetchone()
            told = f"form 3 of None in {book} from {first} to {last}\nat {text_of(at)}\n"
            digest = hashlib.sha256(digest + told.encode() + leaves).digest()
            cursor.execute(
                "INSERT INTO accounting_sealedbook (book, number, digest) VALUES (%s, %s, %s)"
                " ON CONFLICT (book) DO UPDATE SET number = excluded.number, digest = excluded.digest",
                [book, number, digest],
            )
            cursor.execute(
                "INSERT INTO accounting_ledgerseal (book, number, first_id, last_id, form, leaves, digest, sealed_at)"
                " VALUES (%s, %s, %s, %s, 3, %s, %s, %s)",
                [book, number, first, last, leaves, digest, at],
            )


def text_of(moment: Any) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def name_last_seals(connection: Any, books: str) -> None:
    """Makes a head of the last seal of each of these books."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (book) book, number, digest, clock_timestamp() FROM accounting_ledgerseal"
            f" WHERE {books} ORDER BY book, number DESC"
        )
        for book, seal, seal_digest, at in cursor.fetchall():
            append(cursor, at, book, seal, bytes(seal_digest), "")


def append(cursor: Any, at: Any, book: int, seal: int, seal_digest: bytes, reason: str) -> None:
    """Makes the next head, signed if the settings have a key."""
    cursor.execute(
        "SELECT number, digest, signer, signature FROM accounting_ledgerhead ORDER BY number DESC LIMIT 1"
    )
    number, before, signer, signature = cursor.fetchone() or (0, b"", b"", b"")
    number += 1
    says = [
        "fairlot ledger head",
        number,
        text_of(at),
        book,
        seal,
        seal_digest.hex(),
        reason,
        bytes(before).hex(),
        f"{bytes(signer).hex()}:{bytes(signature).hex()}" if before else "",
    ]
    digest = hashlib.sha256(json.dumps(says).encode()).digest()
    signer, signature = signing.sign(f"head:{number}:{at.astimezone(UTC):%Y%m%dT%H%M%SZ}:{digest.hex()}".encode())
    cursor.execute(
        "INSERT INTO accounting_ledgerhead (number, at, book, seal, seal_digest, reason, digest, signer, signature)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [number, at, book, seal, seal_digest, reason, digest, signer, signature],
    )


def name_seals(apps: Any, schema_editor: Any) -> None:
    name_last_seals(schema_editor.connection, "true")
    with schema_editor.connection.cursor() as cursor:
        # What the books have got since their last seals gets one after this, however long ago it was.
        cursor.execute(
            "SELECT clock_timestamp() WHERE EXISTS (SELECT FROM accounting_ledgertransaction booked WHERE id >"
            " coalesce((SELECT max(last_id) FROM accounting_ledgerseal WHERE book = booked.book AND month IS NULL), 0))"
        )
        if now := cursor.fetchone():
            append(cursor, now[0], 0, 0, b"", "The ledger got heads by an upgrade.")


CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED;"
# Undone first of all that is undone.
NO_WAY_BACK = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM accounting_ledgerseal WHERE form > 2) THEN
        RAISE EXCEPTION 'the chain of seals has leaves of a form that it could not have before this migration';
    END IF;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0026_classes_of_archived_hours'),
    ]

    operations = [
        migrations.CreateModel(
            name='LedgerHead',
            fields=[
                ('number', models.BigIntegerField(primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('book', models.BigIntegerField()),
                ('seal', models.BigIntegerField()),
                ('seal_digest', models.BinaryField()),
                ('reason', models.CharField(blank=True, default='', max_length=300)),
                ('digest', models.BinaryField()),
                ('signer', models.BinaryField(default=b'', help_text='The public key; empty: it is not signed.')),
                ('signature', models.BinaryField(default=b'')),
            ],
            options={
                'indexes': [models.Index(fields=['book', '-number'], name='heads_of_a_book')],
            },
        ),
        migrations.RunPython(seal_journals, migrations.RunPython.noop),
        migrations.RunPython(name_seals, migrations.RunPython.noop),
        migrations.RunSQL(CHECK_NOW, migrations.RunSQL.noop),
        migrations.RunSQL(GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(migrations.RunSQL.noop, NO_WAY_BACK),
    ]
