"""Makes the ledger append-only, balanced and closed, and the audit trail append-only, by triggers.

The triggers hold for the tables' owner, too, and in every replication role (ENABLE ALWAYS).
"""

from django.db import migrations

APPEND_ONLY = [
    "accounting_ledgeraccount",
    "accounting_ledgertransaction",
    "accounting_ledgerentry",
    "accounting_usagesegment",
    "accounting_auditevent",
]
FUNCTIONS = [
    "accounting_refuse_change",
    "accounting_open_transaction",
    "accounting_refuse_late_entry",
    "accounting_check_unit",
    "accounting_check_transaction",
]

WHAT_TRIGGERS_CALL = """
CREATE FUNCTION accounting_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only, % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'Book a correction instead.';
END $$;

-- Which database transaction booked it. xid8 is never reused; the time guards against a restored
-- dump, whose new server counts its transactions from the start again.
ALTER TABLE accounting_ledgertransaction
    ADD COLUMN booked_in xid8 NOT NULL DEFAULT pg_current_xact_id();

CREATE FUNCTION accounting_open_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.booked_in := pg_current_xact_id();
    NEW.recorded_at := transaction_timestamp();
    RETURN NEW;
END $$;

CREATE FUNCTION accounting_refuse_late_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM accounting_ledgertransaction booked
        WHERE booked.id = NEW.transaction_id
          AND booked.booked_in = pg_current_xact_id()
          AND booked.recorded_at = transaction_timestamp()
    ) THEN
        RAISE EXCEPTION 'ledger transaction % is closed', NEW.transaction_id
            USING ERRCODE = 'integrity_constraint_violation', HINT = 'Book a correction instead.';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION accounting_check_unit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.generation_id IS NOT NULL AND NEW.unit IS DISTINCT FROM (
        SELECT 'GPU-s ' || name FROM accounting_generation WHERE id = NEW.generation_id
    ) THEN
        RAISE EXCEPTION 'the unit % is not that of generation %', NEW.unit, NEW.generation_id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

-- At commit, of a whole transaction. It runs again for every entry, because someone might have the
-- constraints checked early (SET CONSTRAINTS ... IMMEDIATE) and go on adding.
-- Every query has one way only, by the transaction's id: after a large booking the planner knows
-- nothing yet of the rows and would choose others that read the whole table each time.
CREATE FUNCTION accounting_check_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    booked accounting_ledgertransaction;
    segment accounting_usagesegment;
    booked_id bigint;
    entry_count bigint;
    surplus text;
    fits boolean;
BEGIN
    IF TG_TABLE_NAME = 'accounting_ledgertransaction' THEN
        booked_id := NEW.id;
    ELSE
        booked_id := NEW.transaction_id;
    END IF;
    SELECT * INTO STRICT booked FROM accounting_ledgertransaction WHERE id = booked_id;

    SELECT coalesce(sum(entries), 0), string_agg(total || ' ' || unit, ', ') FILTER (WHERE total <> 0)
    INTO entry_count, surplus
    FROM (
        SELECT account.unit, count(*) AS entries, sum(entry.amount) AS total
        FROM accounting_ledgerentry entry
        CROSS JOIN LATERAL (SELECT * FROM accounting_ledgeraccount WHERE id = entry.account_id OFFSET 0) account
        WHERE entry.transaction_id = booked_id
        GROUP BY account.unit
    ) AS per_unit;
    IF entry_count < 2 THEN
        RAISE EXCEPTION 'ledger transaction % has % entries, fewer than two', booked.key, entry_count
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF surplus IS NOT NULL THEN
        RAISE EXCEPTION 'ledger transaction % does not balance: %', booked.key, surplus
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    IF booked.kind = 'usage' THEN
        -- Exactly the two entries (four, when it costs something) that its voucher tells.
        SELECT * INTO segment FROM accounting_usagesegment WHERE transaction_id = booked_id;
        SELECT count(*) = entry_count AND count(DISTINCT account.kind) = entry_count
            AND entry_count = CASE WHEN segment.cost = 0 THEN 2 ELSE 4 END
            AND segment.period = booked.period
        INTO fits
        FROM accounting_ledgerentry entry
        CROSS JOIN LATERAL (SELECT * FROM accounting_ledgeraccount WHERE id = entry.account_id OFFSET 0) account
        WHERE entry.transaction_id = booked_id
          AND CASE account.kind
              WHEN 'usage' THEN entry.amount = segment.gpu_seconds
              WHEN 'capacity' THEN entry.amount = -segment.gpu_seconds
              WHEN 'cost' THEN entry.amount = segment.cost AND account.unit = segment.currency
              WHEN 'revenue' THEN entry.amount = -segment.cost AND account.unit = segment.currency
              ELSE false END
          AND (account.generation_id IS NULL OR account.generation_id = segment.generation_id)
          AND (account.tenant_id IS NULL OR account.tenant_id = segment.tenant_id)
          AND (account.user_id IS NULL OR account.user_id = segment.user_id);
    ELSIF booked.kind = 'trade' THEN
        SELECT bool_and(account.kind = 'trade') INTO fits
        FROM accounting_ledgerentry entry
        CROSS JOIN LATERAL (SELECT * FROM accounting_ledgeraccount WHERE id = entry.account_id OFFSET 0) account
        WHERE entry.transaction_id = booked_id;
    ELSE
        SELECT bool_and(total = 0) INTO fits
        FROM (
            SELECT sum(entry.amount) AS total
            FROM accounting_ledgerentry entry
            WHERE entry.transaction_id IN (booked_id, booked.corrects_id)
            GROUP BY entry.account_id
        ) AS per_account;
    END IF;
    IF fits IS NOT TRUE THEN
        RAISE EXCEPTION 'the entries of ledger transaction % are not those of its %', booked.key, booked.kind
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
"""

# Names are looked up where the tables are, never in a temporary schema that would shadow them.
FIXED_SEARCH_PATH = "\n".join(
    f"""DO $$ BEGIN
        EXECUTE format('ALTER FUNCTION {name}() SET search_path = %I, pg_temp', current_schema());
    END $$;"""
    for name in FUNCTIONS
)

TRIGGERS = """
CREATE TRIGGER open_transaction BEFORE INSERT ON accounting_ledgertransaction
    FOR EACH ROW EXECUTE FUNCTION accounting_open_transaction();
CREATE TRIGGER refuse_late_entry BEFORE INSERT ON accounting_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION accounting_refuse_late_entry();
CREATE TRIGGER refuse_late_entry BEFORE INSERT ON accounting_usagesegment
    FOR EACH ROW EXECUTE FUNCTION accounting_refuse_late_entry();
CREATE TRIGGER check_unit BEFORE INSERT ON accounting_ledgeraccount
    FOR EACH ROW EXECUTE FUNCTION accounting_check_unit();
CREATE CONSTRAINT TRIGGER check_transaction AFTER INSERT ON accounting_ledgertransaction
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION accounting_check_transaction();
CREATE CONSTRAINT TRIGGER check_transaction AFTER INSERT ON accounting_ledgerentry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION accounting_check_transaction();
ALTER TABLE accounting_ledgertransaction ENABLE ALWAYS TRIGGER open_transaction;
ALTER TABLE accounting_ledgerentry ENABLE ALWAYS TRIGGER refuse_late_entry;
ALTER TABLE accounting_usagesegment ENABLE ALWAYS TRIGGER refuse_late_entry;
ALTER TABLE accounting_ledgeraccount ENABLE ALWAYS TRIGGER check_unit;
ALTER TABLE accounting_ledgertransaction ENABLE ALWAYS TRIGGER check_transaction;
ALTER TABLE accounting_ledgerentry ENABLE ALWAYS TRIGGER check_transaction;
""" + "\n".join(
    f"""
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only;"""
    for table in APPEND_ONLY
)

# What one row can prove about itself. Cost is rounded to four decimals, so it may be off by half of the last.
SEGMENT_RULES = """
ALTER TABLE accounting_usagesegment
    ADD CONSTRAINT a_segment_stays_in_one_hour CHECK (
        lower(period) IS NOT NULL AND upper(period) IS NOT NULL -- neither empty nor open
        AND lower_inc(period) AND NOT upper_inc(period)
        AND floor(extract(epoch FROM lower(period)) / 3600) + 1 = ceil(extract(epoch FROM upper(period)) / 3600)
    ),
    ADD CONSTRAINT a_segment_counts_its_gpu_seconds CHECK (
        gpu_seconds = gpus * (extract(epoch FROM upper(period)) - extract(epoch FROM lower(period)))
    ),
    ADD CONSTRAINT a_segment_costs_its_price CHECK (
        price_per_gpu_hour >= 0 AND cost >= 0
        AND abs(cost * 3600 - gpu_seconds * price_per_gpu_hour) <= 0.00005 * 3600
    );
"""

UNDO = (
    """
ALTER TABLE accounting_usagesegment
    DROP CONSTRAINT a_segment_stays_in_one_hour,
    DROP CONSTRAINT a_segment_counts_its_gpu_seconds,
    DROP CONSTRAINT a_segment_costs_its_price;
"""
    + "".join(f"DROP FUNCTION {name}() CASCADE;\n" for name in FUNCTIONS)
    + "ALTER TABLE accounting_ledgertransaction DROP COLUMN booked_in;\n"
)


class Migration(migrations.Migration):
    dependencies = [("accounting", "0002_corrections")]

    operations = [
        migrations.RunSQL(WHAT_TRIGGERS_CALL + FIXED_SEARCH_PATH + TRIGGERS + SEGMENT_RULES, UNDO),
    ]
