"""The entries of many transactions are checked at once: one after another, those of trades took half of a round."""

from django.db import migrations

CHECK = """
-- All entries of a transaction come in one statement, after its vouchers, and are checked with it, however many
-- transactions come with them. What is looked up by its key is so whatever the planner believes of the tables' size.
CREATE OR REPLACE FUNCTION accounting_check_entries() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wrong record;
BEGIN
    SELECT new_one.* INTO wrong
    FROM (SELECT transaction_id, month, count(*) AS entries FROM inserted GROUP BY 1, 2) new_one
    LEFT JOIN LATERAL (
        SELECT booked_in, recorded_at FROM accounting_ledgertransaction
        WHERE id = new_one.transaction_id AND month = new_one.month OFFSET 0
    ) booked ON true
    WHERE (booked.booked_in = pg_current_xact_id() AND booked.recorded_at = transaction_timestamp()
        AND new_one.entries = (SELECT count(*) FROM accounting_ledgerentry entry
                               WHERE entry.transaction_id = new_one.transaction_id AND entry.month = new_one.month)
    ) IS NOT TRUE
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % is closed', wrong.transaction_id
            USING ERRCODE = 'integrity_constraint_violation',
                  HINT = 'All its entries come in one statement. Book a correction instead.';
    END IF;

    SELECT transaction_id, month, string_agg(total || ' ' || unit, ', ') AS surplus INTO wrong
    FROM (
        SELECT entry.transaction_id, entry.month, account.unit, sum(entry.amount) AS total
        FROM inserted entry
        CROSS JOIN LATERAL (SELECT unit FROM accounting_ledgeraccount WHERE id = entry.account_id OFFSET 0) account
        GROUP BY 1, 2, 3
    ) per_unit
    WHERE total <> 0
    GROUP BY 1, 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % does not balance: %',
            (SELECT key FROM accounting_ledgertransaction WHERE id = wrong.transaction_id AND month = wrong.month),
            wrong.surplus USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    WITH new_one AS MATERIALIZED (
        SELECT booked.* FROM (SELECT DISTINCT transaction_id, month FROM inserted) one
        CROSS JOIN LATERAL (
            SELECT * FROM accounting_ledgertransaction WHERE id = one.transaction_id AND month = one.month OFFSET 0
        ) booked
    ), entry AS MATERIALIZED (
        SELECT inserted.transaction_id, inserted.month, inserted.amount, account.kind, account.unit,
               coalesce(account.generation_id, 0) AS generation, coalesce(account.tenant_id, 0) AS tenant,
               coalesce(account.user_id, 0) AS person
        FROM inserted
        CROSS JOIN LATERAL (SELECT * FROM accounting_ledgeraccount WHERE id = inserted.account_id OFFSET 0) account
    ), unlike AS (
        -- Of trades nothing tells but their entries, which are of trades alone.
        SELECT entry.transaction_id AS id, entry.month
        FROM entry JOIN new_one ON new_one.id = entry.transaction_id AND new_one.month = entry.month
        WHERE new_one.kind = 'trade' AND entry.kind <> 'trade'
        UNION ALL
        SELECT id, month
        FROM (
            SELECT entry.transaction_id AS id, entry.month, entry.kind, unit, generation, tenant, person,
                   sum(amount) AS amount
            FROM entry JOIN new_one ON new_one.id = entry.transaction_id AND new_one.month = entry.month
            WHERE new_one.kind <> 'trade'
            GROUP BY 1, 2, 3, 4, 5, 6, 7
        ) there
        FULL JOIN (
            SELECT new_one.id, new_one.month, told.kind, told.unit, coalesce(told.generation_id, 0) AS generation,
                   coalesce(told.tenant_id, 0) AS tenant, coalesce(told.user_id, 0) AS person,
                   sum(told.amount) AS amount
            FROM new_one CROSS JOIN LATERAL accounting_told(new_one::accounting_ledgertransaction) told
            WHERE new_one.kind <> 'trade'
            GROUP BY 1, 2, 3, 4, 5, 6, 7
        ) told USING (id, month, kind, unit, generation, tenant, person)
        WHERE told.amount IS DISTINCT FROM there.amount
        UNION ALL
        SELECT id, month FROM new_one
        WHERE kind <> 'trade' AND (kind = 'correction') <> (corrects_id IS NOT NULL OR EXISTS (
            SELECT FROM accounting_correctedsegment corrected
            WHERE corrected.transaction_id = new_one.id AND corrected.month = new_one.month
        ))
        UNION ALL
        SELECT new_one.id, new_one.month FROM new_one
        CROSS JOIN LATERAL (
            SELECT * FROM accounting_usagesegment
            WHERE transaction_id = new_one.id AND month = new_one.month OFFSET 0
        ) segment
        WHERE new_one.kind <> 'usage' OR segment.book <> new_one.book OR NOT segment.period <@ new_one.period
        UNION ALL
        SELECT new_one.id, new_one.month FROM new_one
        CROSS JOIN LATERAL (
            SELECT * FROM accounting_capacitysegment
            WHERE transaction_id = new_one.id AND month = new_one.month OFFSET 0
        ) closing
        WHERE new_one.kind <> 'closing' OR closing.book <> new_one.book OR NOT closing.period <@ new_one.period
    )
    SELECT new_one.key, new_one.kind INTO wrong FROM unlike JOIN new_one USING (id, month) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the entries of ledger transaction % are not those of its %', wrong.key, wrong.kind
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    -- Another version of some time is for what was taken back.
    SELECT segment.transaction_id, segment.month INTO wrong
    FROM (SELECT DISTINCT transaction_id, month FROM inserted) new_one
    CROSS JOIN LATERAL (
        SELECT * FROM accounting_usagesegment
        WHERE transaction_id = new_one.transaction_id AND month = new_one.month OFFSET 0
    ) segment
    CROSS JOIN LATERAL (
        SELECT * FROM accounting_usagesegment other
        WHERE other.month = segment.month AND other.lease_id = segment.lease_id
          AND other.period && segment.period AND other.id <> segment.id OFFSET 0
    ) other
    WHERE NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                      WHERE corrected.segment_id = other.id AND corrected.month = other.month)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'ledger transaction % bills a lease twice for some time',
            (SELECT key FROM accounting_ledgertransaction WHERE id = wrong.transaction_id AND month = wrong.month)
            USING ERRCODE = 'integrity_constraint_violation', HINT = 'Take the other back first.';
    END IF;
    RETURN NULL;
END $$;

-- Names are looked up where the tables are, never in a temporary schema that would shadow them.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION accounting_check_entries() SET search_path = %I, pg_temp', current_schema());
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("accounting", "0031_orders_of_jobs")]

    operations = [migrations.RunSQL(CHECK)]
