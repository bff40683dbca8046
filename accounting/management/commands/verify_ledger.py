"""Recounts the whole ledger, independently of the triggers that guard it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

# Each finds rows that must not exist; the first column names the first bad one.
CHECKS = {
    "a transaction has fewer than two entries": """
        SELECT booked.key, count(entry.id)
        FROM accounting_ledgertransaction booked
        LEFT JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id
        GROUP BY booked.id HAVING count(entry.id) < 2 ORDER BY booked.id LIMIT 1
    """,
    "a transaction does not balance": """
        SELECT booked.key, account.unit, sum(entry.amount)
        FROM accounting_ledgertransaction booked
        JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id
        JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        GROUP BY booked.id, account.unit HAVING sum(entry.amount) <> 0 ORDER BY booked.id LIMIT 1
    """,
    "usage has no segment, or a segment is not usage": """
        SELECT booked.key
        FROM accounting_ledgertransaction booked
        LEFT JOIN accounting_usagesegment segment ON segment.transaction_id = booked.id
        WHERE (booked.kind = 'usage') <> (segment.id IS NOT NULL) ORDER BY booked.id LIMIT 1
    """,
    "a segment differs from its entries": """
        SELECT booked.key
        FROM accounting_usagesegment segment
        JOIN accounting_ledgertransaction booked ON booked.id = segment.transaction_id
        LEFT JOIN LATERAL (
            SELECT coalesce(sum(entry.amount) FILTER (WHERE account.kind = 'usage'), 0) AS time,
                   coalesce(sum(entry.amount) FILTER (WHERE account.kind = 'cost'), 0) AS money,
                   bool_and(account.tenant_id IS NULL OR account.tenant_id = segment.tenant_id) AS tenant,
                   bool_and(account.user_id IS NULL OR account.user_id = segment.user_id) AS person
            FROM accounting_ledgerentry entry
            JOIN accounting_ledgeraccount account ON account.id = entry.account_id
            WHERE entry.transaction_id = segment.transaction_id
        ) sums ON true
        WHERE (sums.time, sums.money, sums.tenant, sums.person, booked.period)
            IS DISTINCT FROM (segment.gpu_seconds, segment.cost, true, true, segment.period)
        ORDER BY segment.id LIMIT 1
    """,
    "a segment does not count its GPU-seconds": """
        SELECT booked.key, segment.gpu_seconds
        FROM accounting_usagesegment segment
        JOIN accounting_ledgertransaction booked ON booked.id = segment.transaction_id
        WHERE segment.gpu_seconds IS DISTINCT FROM segment.gpus
            * (extract(epoch FROM upper(segment.period)) - extract(epoch FROM lower(segment.period)))
        ORDER BY segment.id LIMIT 1
    """,
    "a lease is billed twice for some time": """
        SELECT key, period, before
        FROM (
            SELECT booked.key, segment.id, segment.period,
                   lag(segment.period) OVER (PARTITION BY lease_id ORDER BY segment.period) AS before
            FROM accounting_usagesegment segment
            JOIN accounting_ledgertransaction booked ON booked.id = segment.transaction_id
        ) following
        WHERE period && before ORDER BY id LIMIT 1
    """,
    "a correction is not the reverse of what it corrects": """
        SELECT correction.key, entry.account_id, sum(entry.amount)
        FROM accounting_ledgertransaction correction
        JOIN accounting_ledgerentry entry ON entry.transaction_id IN (correction.id, correction.corrects_id)
        WHERE correction.kind = 'correction'
        GROUP BY correction.id, entry.account_id HAVING sum(entry.amount) <> 0
        ORDER BY correction.id LIMIT 1
    """,
    "a guard is missing or switched off": """
        SELECT guard.relation, guard.name
        FROM (
            SELECT 'accounting_' || relation AS relation, 'append_only' AS name
            FROM unnest(ARRAY['ledgeraccount', 'ledgertransaction', 'ledgerentry', 'usagesegment',
                              'auditevent']) AS relation
            UNION ALL VALUES
                ('accounting_ledgertransaction', 'open_transaction'),
                ('accounting_ledgertransaction', 'check_transaction'),
                ('accounting_ledgerentry', 'check_transaction'),
                ('accounting_ledgerentry', 'refuse_late_entry'),
                ('accounting_usagesegment', 'refuse_late_entry'),
                ('accounting_ledgeraccount', 'check_unit')
        ) guard
        WHERE NOT EXISTS (
            SELECT FROM pg_trigger
            WHERE tgrelid = guard.relation::regclass AND tgname = guard.name AND tgenabled = 'A'
        )
        ORDER BY 1, 2 LIMIT 1
    """,
}
COUNTS = """
    SELECT (SELECT count(*) FROM accounting_ledgertransaction), (SELECT count(*) FROM accounting_ledgerentry),
           (SELECT count(*) FROM accounting_usagesegment)
"""


class Command(BaseCommand):
    help = "Recounts the ledger. Says OK, or the first bad row and ends with 1."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            # All checks see one state of the ledger, whatever is booked meanwhile.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for what, query in CHECKS.items():
                cursor.execute(query)
                bad = cursor.fetchone()
                if bad is not None:
                    raise CommandError(f"{what}: {', '.join(map(str, bad))}")
            cursor.execute(COUNTS)
            transactions, entries, segments = cursor.fetchone()
        self.stdout.write(f"OK: {transactions} transactions, {entries} entries, {segments} segments")
