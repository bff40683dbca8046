"""The triggers that guard the ledger's tables."""

from __future__ import annotations

from accounting.verification.found import Found, first_row


def a_guard_is_off() -> Found | None:
    return first_row(
        "a guard is missing or switched off",
        """
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
                ('accounting_closedbook'::regclass, 'check_closed'),
                ('accounting_ledgerseal'::regclass, 'append_only'),
                ('accounting_ledgerseal'::regclass, 'check_sealed'),
                ('accounting_sealedbook'::regclass, 'append_only'),
                ('accounting_sealedbook'::regclass, 'only_forwards'),
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
    )
