"""Checks of transactions, entries and vouchers (detailed rows): recomputes all entries from the vouchers."""

from __future__ import annotations

from accounting.verification.found import WITH_VOUCHERS, Found, first_row

# The voucher table of each kind of transaction; a correction of a trade has no vouchers.
VOUCHERS = {
    "usage": "usagesegment",
    "pricing": "classcharge",
    "correction": "correctedsegment",
    "closing": "capacitysegment",
}
# Corrections from before a book's hours were closed: they returned time and money to capacity and revenue, and wrote
# nothing off.
WAS_GIVEN_BACK = (
    "booked.kind = 'correction' AND (closed.since IS NULL OR lower(booked.period) < closed.since)"
)


def a_transaction_lacks_entries() -> Found | None:
    return first_row(
        "a transaction has fewer than two entries",
        """
        SELECT booked.key, count(entry.id)
        FROM accounting_ledgertransaction booked
        LEFT JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
        GROUP BY booked.id, booked.key HAVING count(entry.id) < 2 ORDER BY booked.id LIMIT 1
        """,
    )


def an_entry_belongs_nowhere() -> Found | None:
    return first_row(
        "the transaction or the account of an entry does not exist",
        """
        SELECT entry.id, entry.transaction_id, entry.account_id
        FROM accounting_ledgerentry entry
        LEFT JOIN accounting_ledgertransaction booked
            ON booked.id = entry.transaction_id AND booked.month = entry.month
        LEFT JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        WHERE booked.id IS NULL OR account.id IS NULL ORDER BY entry.id LIMIT 1
        """,
    )


def a_transaction_does_not_balance() -> Found | None:
    return first_row(
        "the entries of a transaction do not add up to 0",
        """
        SELECT booked.key, account.unit, sum(entry.amount)
        FROM accounting_ledgertransaction booked
        JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
        JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        GROUP BY booked.id, booked.key, account.unit HAVING sum(entry.amount) <> 0 ORDER BY booked.id LIMIT 1
        """,
    )


def an_account_has_another_unit() -> Found | None:
    """Finds an account of a generation whose unit is not the unit of this generation, such as "GPU-s A100".

    The entries of a transaction must sum to 0 in each unit. With a wrong unit, somebody could move GPU time from the
    accounts of one generation to those of another.
    """
    return first_row(
        "the unit of a ledger account does not match the account's GPU type",
        """
        SELECT account.id, account.kind, account.unit
        FROM accounting_ledgeraccount account
        JOIN accounting_generation generation ON generation.id = account.generation_id
        WHERE account.unit <> 'GPU-s ' || generation.name ORDER BY account.id LIMIT 1
        """,
    )


def a_transaction_lacks_vouchers() -> Found | None:
    """Finds a transaction without vouchers. Ignores trades and corrections of trades, which never have vouchers.

    In archived months, checks only the closings of hours, because their vouchers are never archived.
    """
    without = " UNION ALL ".join(
        f"""
        SELECT booked.id, booked.key FROM accounting_ledgertransaction booked
        WHERE booked.kind = '{kind}' AND booked.corrects_id IS NULL
          AND {"true" if kind == "closing" else f"booked.month = {WITH_VOUCHERS}"}
          AND NOT EXISTS (
            SELECT FROM accounting_{name} voucher
            WHERE voucher.transaction_id = booked.id AND voucher.month = booked.month
        )
        """  # noqa: S608 - own names
        for kind, name in VOUCHERS.items()
    )
    return first_row(
        "a transaction has no vouchers (the segments or charges that it books)",
        f"SELECT key FROM ({without}) missing ORDER BY id LIMIT 1",  # noqa: S608 - own names
    )


def a_voucher_belongs_nowhere() -> Found | None:
    """Finds a voucher that has no matching transaction.

    The transaction must be of the voucher's kind and in the same cluster's ledger, and its period must contain the
    voucher's time. Also finds a correction or class charge (difference due to the price for idle, preemptible or
    borrowed time) whose usage segment is missing.
    """
    of_segment = {"correctedsegment", "classcharge"}
    queries = []
    for kind, name in VOUCHERS.items():
        told, segment = "voucher", ""
        if name in of_segment:
            told = "segment"
            segment = (
                "LEFT JOIN accounting_usagesegment segment"
                " ON segment.id = voucher.segment_id AND segment.month = voucher.month"
            )
        kinds, astray = f"('{kind}')", "false"
        if name == "classcharge":  # a segment that is posted again takes a copy of its charge along
            kinds, astray = (
                "('pricing', 'usage')",
                "booked.kind = 'usage' AND segment.transaction_id <> booked.id",
            )
        number = "voucher.segment_id" if name in of_segment else "voucher.id"
        queries.append(
            f"""
            SELECT '{name}' AS name, {number} AS id, voucher.transaction_id
            FROM accounting_{name} voucher {segment}
            LEFT JOIN accounting_ledgertransaction booked
                ON booked.id = voucher.transaction_id AND booked.month = voucher.month AND booked.kind IN {kinds}
                AND booked.corrects_id IS NULL AND booked.book = {told}.book AND {told}.period <@ booked.period
            WHERE booked.id IS NULL OR {astray}
            """  # noqa: S608 - own names
        )
    return first_row(
        "a voucher (usage segment or charge) has no transaction of the same kind, book and time",
        f"SELECT * FROM ({' UNION ALL '.join(queries)}) found ORDER BY transaction_id, id LIMIT 1",  # noqa: S608
    )


def a_transaction_differs_from_its_vouchers() -> Found | None:
    """Finds a transaction whose entries differ from its vouchers (detailed rows) in any account, in GPU-seconds or
    money."""
    return first_row(
        "the amounts of a transaction differ from the amounts of its vouchers (detailed rows)",
        f"""
        WITH voucher AS (
            SELECT transaction_id, month, tenant_id, user_id, generation_id, currency, version > 0 AS again,
                   gpu_seconds, cost
            FROM accounting_usagesegment
            UNION ALL
            SELECT corrected.transaction_id, corrected.month, tenant_id, user_id, generation_id, currency, true,
                   -gpu_seconds, -cost
            FROM accounting_correctedsegment corrected
            JOIN accounting_usagesegment segment
                ON segment.id = corrected.segment_id AND segment.month = corrected.month
        ), held AS (
            SELECT transaction_id, month, tenant_id, user_id, generation_id, currency, again,
                   sum(gpu_seconds) AS time, sum(cost) AS money
            FROM voucher GROUP BY 1, 2, 3, 4, 5, 6, 7
        ), charge AS (
            SELECT charge.transaction_id, charge.month, tenant_id, user_id, currency, amount,
                   CASE charge.transaction_id WHEN segment.transaction_id THEN 'waived' ELSE 'classes' END AS from_whom
            FROM accounting_classcharge charge
            JOIN accounting_usagesegment segment ON segment.id = charge.segment_id AND segment.month = charge.month
            UNION ALL
            SELECT corrected.transaction_id, corrected.month, tenant_id, user_id, currency, -amount, 'waived'
            FROM accounting_correctedsegment corrected
            JOIN accounting_classcharge charge
                ON charge.segment_id = corrected.segment_id AND charge.month = corrected.month
            JOIN accounting_usagesegment segment ON segment.id = charge.segment_id AND segment.month = charge.month
        ), told AS (
            SELECT transaction_id, month, line.kind, line.generation_id, line.currency, line.tenant_id, line.user_id,
                   line.amount
            FROM held CROSS JOIN LATERAL (VALUES
                ('usage', held.generation_id, NULL, held.tenant_id, held.user_id, time),
                (CASE WHEN again THEN 'waived' ELSE 'capacity' END, held.generation_id, NULL, NULL, NULL, -time),
                ('cost', NULL, held.currency, held.tenant_id, held.user_id, money),
                (CASE WHEN again THEN 'waived' ELSE 'revenue' END, NULL, held.currency, NULL, NULL, -money)
            ) line (kind, generation_id, currency, tenant_id, user_id, amount)
            UNION ALL
            SELECT transaction_id, month, 'cost', NULL, currency, tenant_id, user_id, amount FROM charge
            UNION ALL
            SELECT transaction_id, month, from_whom, NULL, currency, NULL, NULL, -amount FROM charge
            UNION ALL
            SELECT transaction_id, month, line.kind, line.generation_id, line.currency, NULL, NULL, line.amount
            FROM accounting_capacitysegment closing CROSS JOIN LATERAL (VALUES
                ('free', closing.generation_id, NULL, free),
                ('others', closing.generation_id, NULL, others),
                ('drained', closing.generation_id, NULL, drained),
                ('down', closing.generation_id, NULL, down),
                ('capacity', closing.generation_id, NULL, busy + idle + assembling),
                ('installed', closing.generation_id, NULL, -capacity),
                ('free', NULL, closing.currency, free_value),
                ('others', NULL, closing.currency, others_value),
                ('drained', NULL, closing.currency, drained_value),
                ('down', NULL, closing.currency, down_value),
                ('rounding', NULL, closing.currency, rounding),
                ('revenue', NULL, closing.currency, charged - value)
            ) line (kind, generation_id, currency, amount)
            UNION ALL
            SELECT entry.transaction_id, entry.month, account.kind, account.generation_id,
                   CASE WHEN account.generation_id IS NULL THEN account.unit END, account.tenant_id, account.user_id,
                   -entry.amount
            FROM accounting_ledgerentry entry
            JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        ), line AS (
            SELECT booked.id, booked.key, told.generation_id, told.currency, told.tenant_id, told.user_id, told.amount,
                   CASE WHEN told.kind IN ('capacity', 'revenue') AND {WAS_GIVEN_BACK} THEN 'waived'
                        ELSE told.kind END AS kind
            FROM told
            JOIN accounting_ledgertransaction booked
                ON booked.id = told.transaction_id AND booked.month = told.month
            LEFT JOIN accounting_closedbook closed ON closed.book = booked.book
            WHERE booked.kind <> 'trade' AND booked.corrects_id IS NULL
              AND (booked.kind = 'closing' OR booked.month = {WITH_VOUCHERS})
        )
        SELECT key, kind, coalesce(currency, 'GPU-s'), sum(amount)
        FROM line GROUP BY id, key, kind, generation_id, currency, tenant_id, user_id
        HAVING sum(amount) <> 0 ORDER BY id, kind LIMIT 1
        """,  # noqa: S608 - own names
    )


def an_entry_is_of_an_account_of_another_kind() -> Found | None:
    """Finds an entry in a kind of account that this kind of transaction never uses.

    In archived months, no other check finds such entries.
    """
    return first_row(
        "a transaction has an entry in an account that transactions of its kind never use",
        f"""
        SELECT booked.key, booked.kind, account.kind, entry.id
        FROM accounting_ledgerentry entry
        JOIN accounting_ledgertransaction booked ON booked.id = entry.transaction_id AND booked.month = entry.month
        JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        LEFT JOIN accounting_closedbook closed ON closed.book = booked.book
        WHERE NOT account.kind = ANY (CASE
            WHEN booked.kind = 'trade' OR booked.corrects_id IS NOT NULL THEN ARRAY['trade']
            WHEN booked.kind = 'usage' THEN ARRAY['usage', 'capacity', 'cost', 'revenue', 'waived']
            WHEN booked.kind = 'pricing' THEN ARRAY['cost', 'classes']
            WHEN booked.kind = 'closing'
                THEN ARRAY['free', 'others', 'drained', 'down', 'capacity', 'installed', 'rounding', 'revenue']
            WHEN {WAS_GIVEN_BACK} THEN ARRAY['usage', 'cost', 'waived', 'capacity', 'revenue']
            ELSE ARRAY['usage', 'cost', 'waived'] END)
        ORDER BY booked.id, entry.id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_trade_is_no_exchange() -> Found | None:
    """Finds a trade that is not an exchange of two generations between two tenants.

    In an exchange, each tenant gives one of the generations and receives the other.
    """
    return first_row(
        "a trade is not an exchange of two GPU types between two teams",
        """
        SELECT booked.key
        FROM accounting_ledgertransaction booked
        JOIN accounting_ledgerentry entry ON entry.transaction_id = booked.id AND entry.month = booked.month
        JOIN accounting_ledgeraccount account ON account.id = entry.account_id
        WHERE booked.kind = 'trade'
        GROUP BY booked.id, booked.key
        HAVING (count(*), count(DISTINCT account.tenant_id), count(DISTINCT account.generation_id),
                count(DISTINCT (account.tenant_id, sign(entry.amount))),
                count(DISTINCT (account.generation_id, sign(entry.amount)))) <> (4, 2, 2, 4, 4)
        ORDER BY booked.id LIMIT 1
        """,
    )


def a_trade_is_not_taken_back_as_it_was() -> Found | None:
    return first_row(
        "a correction is not the reverse of the trade that it corrects",
        """
        SELECT correction.key, entry.account_id, sum(entry.amount)
        FROM accounting_ledgertransaction correction
        JOIN accounting_ledgerentry entry ON entry.transaction_id IN (correction.id, correction.corrects_id)
        WHERE correction.corrects_id IS NOT NULL
        GROUP BY correction.id, correction.key, entry.account_id HAVING sum(entry.amount) <> 0
        ORDER BY correction.id LIMIT 1
        """,
    )


def a_segment_miscounts() -> Found | None:
    return first_row(
        "the GPU-seconds of a usage segment are not its GPUs multiplied by its duration",
        """
        SELECT id, lease_id, gpu_seconds
        FROM accounting_usagesegment
        WHERE gpu_seconds IS DISTINCT FROM
            gpus * (extract(epoch FROM upper(period)) - extract(epoch FROM lower(period)))
        ORDER BY id LIMIT 1
        """,
    )


def a_lease_is_billed_twice() -> Found | None:
    return first_row(
        "a lease is billed twice for the same time",
        """
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
    )


def a_segment_was_never_taken_back() -> Found | None:
    """Finds a usage segment that was posted again after a correction, but does not match its previous version.

    The previous version must exist, and a correction must have reversed it. Both versions must have the same lease,
    time, GPUs, idle time, assembling time (not all workers of the gang ran yet), price and cost.
    """
    return first_row(
        "a usage segment was booked again, although no correction took back its earlier version",
        """
        SELECT segment.id, segment.lease_id, segment.version
        FROM accounting_usagesegment segment
        WHERE segment.version > 0 AND NOT EXISTS (
            SELECT FROM accounting_usagesegment before
            JOIN accounting_correctedsegment corrected
                ON corrected.segment_id = before.id AND corrected.month = before.month
            WHERE before.month = segment.month AND before.lease_id = segment.lease_id
              AND before.version = segment.version - 1 AND before.period = segment.period
              AND (before.book, before.generation_id, before.gpus, before.assembling, before.idle,
                   before.price_per_gpu_hour, before.cost, before.currency)
                = (segment.book, segment.generation_id, segment.gpus, segment.assembling, segment.idle,
                   segment.price_per_gpu_hour, segment.cost, segment.currency)
        )
        ORDER BY segment.id LIMIT 1
        """,
    )
