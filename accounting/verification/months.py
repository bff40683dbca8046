"""Checks of archived months: their archive records, hash-chain links and rollups.

An archived month must fulfil three conditions:

- It has an archive record.
- The hash chain covers the files of the archive and the rows that remain in the database.
- The rollups match the ledger entries.
"""

from __future__ import annotations

from django.db.models import Max, Min

from accounting.closing.archive import archive_record, archived_months
from accounting.core.calendar import months_after, start_of_month
from accounting.ledger.hash_chain import APART, books_of, leaf_of_files, sealed_files
from accounting.models import ArchiveRecord, ClosedBook, LedgerSeal
from accounting.verification.found import WITH_VOUCHERS, Found, first_row


def a_month_is_missing() -> Found | None:
    """Finds a month for which some ledger tables have a partition and others do not.

    Ignores the tables of vouchers (detailed usage rows), because archiving a month drops their partitions.
    """
    return first_row(
        "a ledger table has no partition for a month, although other ledger tables have one",
        """
        WITH parents AS (
            SELECT unnest(ARRAY['accounting_ledgertransaction', 'accounting_ledgerentry', 'accounting_capacitysegment',
                                'accounting_nodehour', 'accounting_usagehour', 'accounting_usageday',
                                'accounting_jobday']) AS parent
        ), parts AS (
            SELECT parent, right(part.relname, 7) AS month
            FROM parents JOIN pg_inherits ON inhparent = parent::regclass JOIN pg_class part ON part.oid = inhrelid
        )
        SELECT parent, replace(month, '_', '-')
        FROM parents CROSS JOIN (SELECT DISTINCT month FROM parts) months
        WHERE NOT EXISTS (SELECT FROM parts WHERE (parts.parent, parts.month) = (parents.parent, months.month))
        ORDER BY month, parent LIMIT 1
        """,
    )


def a_month_was_not_archived() -> Found | None:
    """Finds a month whose vouchers (detailed usage rows) are missing although it was not archived.

    Also finds a month whose archive record does not match the hash chain.
    """
    for month in archived_months():
        record = archive_record(month)
        if record is None:
            return Found(
                f"the vouchers (detailed usage rows) of {month:%Y-%m} are missing, and no record shows that they were"
                " archived"
            )
        for book in books_of(month):
            what = _unsealed(book, record)
            if what is not None:
                return Found(f"book {book}: {what}")
    return None


def _unsealed(book: int, record: ArchiveRecord) -> str | None:
    """Returns what is wrong with the hash-chain links for the archived month in the book; None if they are correct."""
    month, number = record.month, record.seals.get(str(book))
    of_month = LedgerSeal.objects.filter(book=book, month=month)
    if number is not None and not of_month.filter(number=number).exists():
        return f"seal {number}, which was made when {month:%Y-%m} was archived, is missing"
    files = sealed_files(book, month)
    if files is not None and files != leaf_of_files(record.digests):
        return f"the seal and the archive record of {month:%Y-%m} contain different file digests"
    if files is None and not of_month.filter(of_sums=True).exists() and _must_be_sealed(record):
        return (
            f"the vouchers (detailed usage rows) of {month:%Y-%m} are missing, and no seal of the hash chain shows that"
            " they were archived"
        )
    return None


def _must_be_sealed(record: ArchiveRecord) -> bool:
    """Returns whether the hash chain must contain a link that covers the rollups of the archived month.

    Old releases did not make such links. When a newer release archives a month, it also makes the missing links of
    earlier months. So the link must exist if a newer release archived this month or a later one.
    """
    if LedgerSeal.objects.filter(of_sums=True, month__gte=record.month).exists():
        return True
    since = LedgerSeal.objects.filter(form__gte=APART).aggregate(at=Min("sealed_at"))["at"]
    return since is not None and record.at >= since


def a_book_is_told_to_be_archived_until_otherwise() -> Found | None:
    months = archived_months()
    until = start_of_month(months_after(months[-1], 1)) if months else None
    told = ClosedBook.objects.aggregate(until=Max("details_since"))["until"]
    if told != until:
        return Found(
            "the books and the archive records disagree about which month was archived last", (told,)
        )
    return None


def an_archived_transaction_was_not_sealed() -> Found | None:
    return first_row(
        "a transaction of an archived month is not covered by the seals that Fairlot made when it archived the month",
        f"""
        SELECT booked.key
        FROM accounting_ledgertransaction booked
        WHERE NOT booked.month = {WITH_VOUCHERS}
          AND booked.corrects_id IS NULL AND booked.kind IN ('usage', 'pricing', 'correction')
          AND booked.month IN (SELECT month FROM accounting_ledgerseal WHERE month IS NOT NULL AND NOT of_sums)
          AND NOT EXISTS (
            SELECT FROM accounting_ledgerseal seal
            WHERE seal.book = booked.book AND seal.month = booked.month AND NOT seal.of_sums
              AND booked.id BETWEEN seal.first_id AND seal.last_id
        )
        ORDER BY booked.id LIMIT 1
        """,  # noqa: S608 - own names
    )


def archived_entries_differ_from_sums() -> Found | None:
    """Finds an archived month in which a user's ledger entries do not sum to the user's hourly rollups.

    Compares the sums over the whole month, in GPU-seconds and in money.
    """
    return first_row(
        "the entries and the hourly rollups of an archived month have different sums",
        f"""
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
        WHERE NOT month = {WITH_VOUCHERS}
        GROUP BY book, month, tenant_id, user_id, generation_id, currency
        HAVING sum(amount) <> 0 ORDER BY month, book, tenant_id, user_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def archived_entries_differ_from_closings() -> Found | None:
    """Finds an archived month in which the cluster's ledger entries do not match the closings of the month's hours.

    Compares two kinds of accounts in each month:

    - Capacity accounts: the entries must sum to 0. Bills subtract GPU time, and closings add the same time.
    - Revenue accounts: the entries plus the total value in the closings must sum to 0.
    """
    # Currencies are summed together: an earlier release may have billed and closed an hour in different currencies.
    return first_row(
        "the ledger entries of an archived month do not match the closed hours of the month",
        f"""
        SELECT book, month, kind, sum(amount)
        FROM (
            SELECT booked.book, booked.month, account.kind, account.generation_id, entry.amount
            FROM accounting_ledgertransaction booked
            JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
            JOIN accounting_ledgeraccount account ON account.id = entry.account_id
            WHERE account.kind IN ('capacity', 'revenue')
            UNION ALL
            SELECT book, month, 'revenue', NULL, value FROM accounting_capacitysegment
        ) both_sides
        WHERE NOT month = {WITH_VOUCHERS}
        GROUP BY book, month, kind, generation_id HAVING sum(amount) <> 0
        ORDER BY month, book, kind LIMIT 1
        """,  # noqa: S608 - own names
    )


def archived_bills_differ_from_sums() -> Found | None:
    return first_row(
        "the stored totals of the bills of an archived hour differ from the rollups of the hour",
        """
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
        ORDER BY hour, book, tenant_id LIMIT 1
        """,
    )
