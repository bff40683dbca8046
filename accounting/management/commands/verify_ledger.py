"""Recounts the whole ledger, independently of the triggers that guard it, and follows its seals."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from accounting.archive import archived_months, told_when_archived
from accounting.models import LedgerSeal
from accounting.one_moment import one_moment
from accounting.seals import first_broken

# Each finds rows that must not exist; the first column names the first bad one. Months whose vouchers are archived
# are not compared with them but with the sums of their hours.
DAYS = """
    SELECT book, day, tenant_id, user_id
    FROM (
        SELECT book, hour AS day, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling, idle, cost,
               segments
        FROM {table}
        UNION ALL
        SELECT usage.book, date_trunc('day', hour, 'UTC'), tenant_id, user_id, generation_id, currency,
               -gpu_seconds, -assembling, -idle, -cost, -segments
        FROM accounting_usagehour usage JOIN accounting_closedbook closed ON closed.book = usage.book
        WHERE date_trunc('day', hour, 'UTC') >= since
          AND date_trunc('day', hour, 'UTC') + interval '1 day' <= until
    ) both_sides
    GROUP BY book, day, tenant_id, user_id, generation_id, currency
    HAVING (sum(gpu_seconds), sum(assembling), sum(idle), sum(cost), sum(segments)) <> (0, 0, 0, 0, 0)
    ORDER BY day LIMIT 1
"""
CHECKS = {
    "a transaction has fewer than two entries": """
        SELECT booked.key, count(entry.id)
        FROM accounting_ledgertransaction booked
        LEFT JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
        GROUP BY booked.id, booked.key HAVING count(entry.id) < 2 ORDER BY booked.id LIMIT 1
    """,
    "entries are of no transaction": """
        SELECT entry.id, entry.transaction_id
        FROM accounting_ledgerentry entry
        LEFT JOIN accounting_ledgertransaction booked
            ON booked.id = entry.transaction_id AND booked.month = entry.month
        WHERE booked.id IS NULL ORDER BY entry.id LIMIT 1
    """,
    "a transaction does not balance": """
        SELECT booked.key, account.unit, sum(entry.amount)
        FROM accounting_ledgertransaction booked
        JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
        JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        GROUP BY booked.id, booked.key, account.unit HAVING sum(entry.amount) <> 0 ORDER BY booked.id LIMIT 1
    """,
    "usage has no segment, or a segment is not usage": """
        SELECT booked.key
        FROM accounting_ledgertransaction booked
        WHERE booked.kind = 'usage' AND booked.month = ANY((SELECT accounting_months_with_vouchers())::date[])
          AND NOT EXISTS (
            SELECT FROM accounting_usagesegment segment
            WHERE segment.transaction_id = booked.id AND segment.month = booked.month
        )
        UNION ALL
        SELECT 'segment ' || segment.id
        FROM accounting_usagesegment segment
        LEFT JOIN accounting_ledgertransaction booked
            ON booked.id = segment.transaction_id AND booked.month = segment.month AND booked.kind = 'usage'
        WHERE booked.id IS NULL
        LIMIT 1
    """,
    "a transaction differs from its segments": """
        WITH voucher AS (
            SELECT transaction_id, month, tenant_id, user_id, generation_id, currency, gpu_seconds, cost
            FROM accounting_usagesegment
            UNION ALL
            SELECT corrected.transaction_id, corrected.month, tenant_id, user_id, generation_id, currency,
                   -gpu_seconds, -cost
            FROM accounting_correctedsegment corrected
            JOIN accounting_usagesegment segment
                ON segment.id = corrected.segment_id AND segment.month = corrected.month
            UNION ALL
            SELECT charge.transaction_id, charge.month, tenant_id, user_id, generation_id, currency, 0, amount
            FROM accounting_classcharge charge
            JOIN accounting_usagesegment segment ON segment.id = charge.segment_id AND segment.month = charge.month
            UNION ALL
            SELECT corrected.transaction_id, corrected.month, tenant_id, user_id, generation_id, currency, 0, -amount
            FROM accounting_correctedsegment corrected
            JOIN accounting_classcharge charge
                ON charge.segment_id = corrected.segment_id AND charge.month = corrected.month
            JOIN accounting_usagesegment segment ON segment.id = charge.segment_id AND segment.month = charge.month
        ), amounts AS (
            SELECT transaction_id, month, tenant_id, user_id, generation_id, NULL AS currency, gpu_seconds AS amount
            FROM voucher
            UNION ALL
            SELECT transaction_id, month, tenant_id, user_id, NULL, currency, cost FROM voucher
            UNION ALL
            SELECT entry.transaction_id, entry.month, account.tenant_id, account.user_id, account.generation_id,
                   CASE account.kind WHEN 'cost' THEN account.unit END, -entry.amount
            FROM accounting_ledgerentry entry
            JOIN accounting_ledgeraccount account ON account.id = entry.account_id
            WHERE account.kind IN ('usage', 'cost')
        )
        SELECT booked.key, sum(amounts.amount)
        FROM amounts JOIN accounting_ledgertransaction booked
            ON booked.id = amounts.transaction_id AND booked.month = amounts.month
        WHERE booked.corrects_id IS NULL AND booked.month = ANY((SELECT accounting_months_with_vouchers())::date[])
        GROUP BY booked.id, booked.key, tenant_id, user_id, generation_id, currency
        HAVING sum(amounts.amount) <> 0 ORDER BY booked.id LIMIT 1
    """,
    "a transaction of an archived month is not among those that were sealed with it": """
        SELECT booked.key
        FROM accounting_ledgertransaction booked
        WHERE NOT booked.month = ANY((SELECT accounting_months_with_vouchers())::date[])
          AND booked.corrects_id IS NULL AND booked.kind IN ('usage', 'pricing', 'correction')
          AND booked.month IN (SELECT month FROM accounting_ledgerseal WHERE month IS NOT NULL AND NOT of_sums)
          AND NOT EXISTS (
            SELECT FROM accounting_ledgerseal seal
            WHERE seal.book = booked.book AND seal.month = booked.month AND NOT seal.of_sums
              AND booked.id BETWEEN seal.first_id AND seal.last_id
        )
        ORDER BY booked.id LIMIT 1
    """,
    "the entries of an archived month are not the sums of its hours": """
        SELECT book, month, tenant_id, user_id, sum(amount)
        FROM (
            SELECT booked.book, booked.month, account.tenant_id, account.user_id, account.generation_id,
                   CASE account.kind WHEN 'cost' THEN account.unit END AS currency, entry.amount
            FROM accounting_ledgertransaction booked
            JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
            JOIN accounting_ledgeraccount account ON account.id = entry.account_id
            WHERE account.kind IN ('usage', 'cost')
            UNION ALL
            SELECT book, month, tenant_id, user_id, generation_id, NULL, -gpu_seconds FROM accounting_usagehour
            UNION ALL
            SELECT book, month, tenant_id, user_id, NULL, currency, -cost FROM accounting_usagehour
        ) both_sides
        WHERE NOT month = ANY((SELECT accounting_months_with_vouchers())::date[])
        GROUP BY book, month, tenant_id, user_id, generation_id, currency
        HAVING sum(amount) <> 0 ORDER BY month LIMIT 1
    """,
    "a charge is not what its classes cost": """
        SELECT charge.segment_id, charge.amount
        FROM accounting_classcharge charge
        LEFT JOIN accounting_usagesegment segment
            ON segment.id = charge.segment_id AND segment.month = charge.month
        WHERE (
            charge.idle <= segment.idle
            AND charge.idle + charge.preemptible + charge.borrowed <= segment.gpu_seconds
            AND abs((segment.cost + charge.amount) * 3600
                    - charge.idle * charge.idle_price - charge.preemptible * charge.preemptible_price
                    - charge.borrowed * charge.borrowed_price
                    - (segment.gpu_seconds - charge.idle - charge.preemptible - charge.borrowed)
                        * segment.price_per_gpu_hour) <= 0.00005 * 3600
        ) IS NOT TRUE
        ORDER BY charge.segment_id LIMIT 1
    """,
    "a segment does not count its GPU-seconds": """
        SELECT id, lease_id, gpu_seconds
        FROM accounting_usagesegment
        WHERE gpu_seconds IS DISTINCT FROM
            gpus * (extract(epoch FROM upper(period)) - extract(epoch FROM lower(period)))
        ORDER BY id LIMIT 1
    """,
    "a lease is billed twice for some time": """
        SELECT lease_id, period, before
        FROM (
            SELECT segment.id, lease_id, period,
                   lag(period) OVER (PARTITION BY lease_id ORDER BY period) AS before
            FROM accounting_usagesegment segment
            WHERE NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                              WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
        ) following
        WHERE period && before ORDER BY id LIMIT 1
    """,
    "a correction is not the reverse of the trade that it corrects": """
        SELECT correction.key, entry.account_id, sum(entry.amount)
        FROM accounting_ledgertransaction correction
        JOIN accounting_ledgerentry entry ON entry.transaction_id IN (correction.id, correction.corrects_id)
        WHERE correction.corrects_id IS NOT NULL
        GROUP BY correction.id, correction.key, entry.account_id HAVING sum(entry.amount) <> 0
        ORDER BY correction.id LIMIT 1
    """,
    "a closing differs from what was billed": """
        SELECT closing.book, closing.period, closing.generation_id
        FROM accounting_capacitysegment closing
        LEFT JOIN LATERAL (
            SELECT sum(gpu_seconds) AS held, sum(assembling) AS assembling, sum(idle) AS idle, sum(cost) AS charged
            FROM accounting_usagesegment segment
            WHERE segment.month = closing.month AND segment.book = closing.book AND segment.version = 0
              AND segment.generation_id = closing.generation_id
              AND lower(segment.period) >= lower(closing.period) AND lower(segment.period) < upper(closing.period)
        ) usage ON true
        WHERE closing.month = ANY((SELECT accounting_months_with_vouchers())::date[])
          AND (busy + closing.assembling + closing.idle, closing.assembling, closing.idle, closing.charged)
            IS DISTINCT FROM (coalesce(held, 0), coalesce(usage.assembling, 0), coalesce(usage.idle, 0),
                              coalesce(usage.charged, 0))
        ORDER BY closing.id LIMIT 1
    """,
    "a closing is not worth its price": """
        SELECT book, period, generation_id, value
        FROM accounting_capacitysegment
        WHERE busy + idle + assembling + free + others + drained + down <> capacity
           OR charged + free_value + others_value + drained_value + down_value + rounding <> value
           OR abs(value * 3600 - capacity * price_per_gpu_hour) > 0.00005 * 3600
        ORDER BY id LIMIT 1
    """,
    "nodes do not sum to their closing": """
        SELECT book, hour, generation_id
        FROM (
            SELECT book, hour, generation_id, busy, idle, assembling, free, others, drained, down
            FROM accounting_nodehour
            UNION ALL
            SELECT book, date_trunc('hour', lower(period), 'UTC'), generation_id, -busy, -idle, -assembling, -free,
                   -others, -drained, -down
            FROM accounting_capacitysegment
        ) both_sides
        GROUP BY book, hour, generation_id
        HAVING (sum(busy), sum(idle), sum(assembling), sum(free), sum(others), sum(drained), sum(down))
            <> (0, 0, 0, 0, 0, 0, 0)
        ORDER BY hour LIMIT 1
    """,
    "the sums of an hour are not those of its segments": """
        SELECT book, hour, tenant_id, user_id
        FROM (
            SELECT book, hour, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling, idle, cost,
                   segments
            FROM accounting_usagehour WHERE month = ANY((SELECT accounting_months_with_vouchers())::date[])
            UNION ALL
            SELECT segment.book, date_trunc('hour', lower(period), 'UTC'), tenant_id, user_id, generation_id, currency,
                   -gpu_seconds, -assembling, -segment.idle, -cost - coalesce(charge.amount, 0), -1
            FROM accounting_usagesegment segment JOIN accounting_closedbook closed ON closed.book = segment.book
            LEFT JOIN accounting_classcharge charge
                ON charge.segment_id = segment.id AND charge.month = segment.month
            WHERE lower(period) >= since AND lower(period) < until
              AND NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                              WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
        ) both_sides
        GROUP BY book, hour, tenant_id, user_id, generation_id, currency
        HAVING (sum(gpu_seconds), sum(assembling), sum(idle), sum(cost), sum(segments)) <> (0, 0, 0, 0, 0)
        ORDER BY hour LIMIT 1
    """,
    "the sums of a day are not those of its hours": DAYS.format(table="accounting_usageday"),
    "the sums of a job's day are not those of its hours": DAYS.format(table="accounting_jobday"),
    "the sums of a job's day are not those of its segments": """
        SELECT book, day, job_id
        FROM (
            SELECT book, hour AS day, job_id, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling,
                   idle, cost, segments
            FROM accounting_jobday WHERE month = ANY((SELECT accounting_months_with_vouchers())::date[])
            UNION ALL
            SELECT segment.book, date_trunc('day', lower(period), 'UTC'), job_id, tenant_id, user_id, generation_id,
                   currency, -gpu_seconds, -assembling, -segment.idle, -cost - coalesce(charge.amount, 0), -1
            FROM accounting_usagesegment segment JOIN accounting_closedbook closed ON closed.book = segment.book
            LEFT JOIN accounting_classcharge charge
                ON charge.segment_id = segment.id AND charge.month = segment.month
            WHERE date_trunc('day', lower(period), 'UTC') >= since
              AND date_trunc('day', lower(period), 'UTC') + interval '1 day' <= until
              AND NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                              WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
        ) both_sides
        GROUP BY book, day, job_id, tenant_id, user_id, generation_id, currency
        HAVING (sum(gpu_seconds), sum(assembling), sum(idle), sum(cost), sum(segments)) <> (0, 0, 0, 0, 0)
        ORDER BY day LIMIT 1
    """,
    "what stays of an archived hour's bills is not what its sums say": """
        SELECT book, hour, tenant_id, generation_id, currency
        FROM (
            SELECT book, hour, tenant_id, generation_id, currency, gpu_seconds, cost
            FROM accounting_usagehour
            WHERE month IN (SELECT month FROM accounting_archivedhour)
            UNION ALL
            SELECT book, hour, tenant_id, generation_id, currency, -gpu_seconds, -cost - charged
            FROM accounting_archivedhour
            WHERE correction_id IS NULL
        ) both_sides
        GROUP BY book, hour, tenant_id, generation_id, currency
        HAVING (sum(gpu_seconds), sum(cost)) <> (0, 0)
        ORDER BY hour LIMIT 1
    """,
    "a job's day has a name that the job never had": """
        SELECT book, hour, job_id, job_name
        FROM accounting_jobday day
        WHERE month = ANY((SELECT accounting_months_with_vouchers())::date[])
          AND NOT EXISTS (
            SELECT FROM accounting_usagesegment segment
            WHERE segment.month = day.month AND segment.book = day.book AND segment.job_id = day.job_id
              AND segment.job_name = day.job_name
        )
        ORDER BY hour LIMIT 1
    """,
    "a guard is missing or switched off": """
        WITH parents AS (
            SELECT unnest(ARRAY['accounting_ledgertransaction', 'accounting_ledgerentry', 'accounting_usagesegment',
                                'accounting_correctedsegment', 'accounting_capacitysegment', 'accounting_classcharge',
                                'accounting_nodehour', 'accounting_usagehour', 'accounting_usageday',
                                'accounting_jobday'])::regclass AS parent
        ), ledger AS (
            SELECT parent, parent AS relation FROM parents
            UNION ALL
            SELECT parent, part.inhrelid::regclass FROM parents JOIN pg_inherits part ON part.inhparent = parent
        ), guard AS (
            SELECT relation, 'append_only' AS name FROM ledger
            UNION ALL
            SELECT relation, unnest(ARRAY['open_transaction', 'check_booked']) FROM ledger
            WHERE parent = 'accounting_ledgertransaction'::regclass
            UNION ALL
            SELECT relation, 'check_rows' FROM ledger
            WHERE parent::text IN ('accounting_ledgerentry', 'accounting_usagesegment',
                                   'accounting_correctedsegment', 'accounting_capacitysegment',
                                   'accounting_classcharge')
            UNION ALL VALUES
                ('accounting_ledgeraccount'::regclass, 'append_only'),
                ('accounting_ledgeraccount'::regclass, 'check_unit'),
                ('accounting_ledgerseal'::regclass, 'append_only'),
                ('accounting_auditevent'::regclass, 'append_only')
        )
        SELECT guard.relation, guard.name
        FROM guard
        WHERE NOT EXISTS (
            SELECT FROM pg_trigger
            WHERE tgrelid = guard.relation AND tgname = guard.name AND tgenabled = 'A'
        )
        ORDER BY 1, 2 LIMIT 1
    """,
}
COUNTS = """
    SELECT (SELECT count(*) FROM accounting_ledgertransaction), (SELECT count(*) FROM accounting_ledgerentry),
           (SELECT count(*) FROM accounting_usagesegment)
"""


class Command(BaseCommand):
    help = "Recounts the ledger and follows its seals. Says OK, or the first bad row and ends with 1."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--noted",
            action="append",
            default=[],
            metavar="BOOK:NUMBER:DIGEST",
            help="a seal that was noted earlier, as this command prints the last of each book",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # All checks see one state of the ledger, whatever is booked meanwhile.
        with one_moment(), connection.cursor() as cursor:
            for noted in options["noted"]:
                _compare(noted)
            broken = first_broken()
            if broken is not None:
                raise CommandError(f"book {broken.book}, seal {broken.seal}: {broken.what}")
            for what, query in CHECKS.items():
                cursor.execute(query)
                bad = cursor.fetchone()
                if bad is not None:
                    raise CommandError(f"{what}: {', '.join(map(str, bad))}")
            cursor.execute(COUNTS)
            transactions, entries, segments = cursor.fetchone()
            last = LedgerSeal.objects.order_by("book", "-number").distinct("book")
            for seal in last:
                self.stdout.write(f"{seal.book}:{seal.number}:{bytes(seal.digest).hex()}")
            months = archived_months()
            for month in months:
                _require_sealed(month)
            with_seals = set(
                LedgerSeal.objects.filter(of_sums=True).order_by().values_list("month", flat=True)
            )
        if months:
            self.stdout.write(f"Not compared with their vouchers, which are archived: {_named(months)}")
        if unsealed := [month for month in months if month not in with_seals]:
            self.stdout.write(
                "Archived by an earlier release, so not all that stays of them is sealed until the next month is"
                f" archived: {_named(unsealed)}"
            )
        self.stdout.write(f"OK: {transactions} transactions, {entries} entries, {segments} segments")


def _require_sealed(month: date) -> None:
    """What stays of an archived month, if the audit trail says so; earlier releases did not seal it."""
    told = told_when_archived(month)
    if told is None:
        raise CommandError(f"the vouchers of {month:%Y-%m} are missing, and nobody archived them")
    for book, number in told.get("seals", {}).items():
        if not LedgerSeal.objects.filter(book=book, number=number, month=month).exists():
            raise CommandError(
                f"book {book}, seal {number}: it was made when {month:%Y-%m} was archived, and is gone"
            )


def _named(months: list[date]) -> str:
    return ", ".join(f"{month:%Y-%m}" for month in months)


def _compare(noted: str) -> None:
    book, number, digest = noted.split(":") if noted.count(":") == 2 else ("", "", "")
    if not (book.isdigit() and number.isdigit()):
        raise CommandError(f"“{noted}” is no seal; the last ones are printed as BOOK:NUMBER:DIGEST")
    seal = LedgerSeal.objects.filter(book=book, number=number).first()
    if seal is None or bytes(seal.digest).hex() != digest:
        raise CommandError(f"book {book}, seal {number} is not the one that was noted: all was made anew")
