"""No hour passes as closed while something is missing of it: the database compares when a book's closed time grows.

A closing that leaves out a generation, or hours without any closing, would pass all that is asked of each closing.
"""

from django.db import migrations

CHECK = """
CREATE FUNCTION accounting_check_closed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    first date := date_trunc('month', OLD.until AT TIME ZONE 'UTC');
    last date := date_trunc('month', NEW.until AT TIME ZONE 'UTC');
BEGIN
    IF EXISTS (
        SELECT FROM (
            SELECT generation_id, gpu_seconds AS held, assembling, idle, cost
              FROM accounting_usagesegment
             WHERE month BETWEEN first AND last AND book = NEW.book AND version = 0
               AND lower(period) >= OLD.until AND lower(period) < NEW.until
            UNION ALL
            SELECT generation_id, -busy - idle - assembling, -assembling, -idle, -charged
              FROM accounting_capacitysegment
             WHERE month BETWEEN first AND last AND book = NEW.book
               AND lower(period) >= OLD.until AND lower(period) < NEW.until
        ) both_sides
        GROUP BY generation_id HAVING (sum(held), sum(assembling), sum(idle), sum(cost)) <> (0, 0, 0, 0)
    ) THEN
        RAISE EXCEPTION 'what was held until % is not what was billed', NEW.until
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF EXISTS (
        SELECT FROM (
            SELECT hour, generation_id, busy, idle, assembling, free, others, drained, down
              FROM accounting_nodehour
             WHERE month BETWEEN first AND last AND book = NEW.book AND hour >= OLD.until AND hour < NEW.until
            UNION ALL
            SELECT date_trunc('hour', lower(period), 'UTC'), generation_id,
                   -busy, -idle, -assembling, -free, -others, -drained, -down
              FROM accounting_capacitysegment
             WHERE month BETWEEN first AND last AND book = NEW.book
               AND lower(period) >= OLD.until AND lower(period) < NEW.until
        ) both_sides
        GROUP BY hour, generation_id
        HAVING (sum(busy), sum(idle), sum(assembling), sum(free), sum(others), sum(drained), sum(down))
            <> (0, 0, 0, 0, 0, 0, 0)
    ) THEN
        RAISE EXCEPTION 'the nodes do not sum to what was closed until %', NEW.until
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
-- Names are looked up where the tables are, never in a temporary schema that would shadow them.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION accounting_check_closed() SET search_path = %I, pg_temp', current_schema());
END $$;
CREATE TRIGGER check_closed AFTER UPDATE OF until ON accounting_closedbook
    FOR EACH ROW WHEN (NEW.until > OLD.until) EXECUTE FUNCTION accounting_check_closed();
ALTER TABLE accounting_closedbook ENABLE ALWAYS TRIGGER check_closed;
"""
UNDO = """
DROP TRIGGER check_closed ON accounting_closedbook;
DROP FUNCTION accounting_check_closed();
"""


class Migration(migrations.Migration):
    dependencies = [("accounting", "0020_seals_of_sums")]

    operations = [migrations.RunSQL(CHECK, UNDO)]
