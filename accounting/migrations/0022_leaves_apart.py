"""Leaves of what stays and of what may be archived apart, and the last seal of each book told apart from its chain."""

from django.db import migrations, models

ENDS = """
INSERT INTO accounting_sealedbook (book, number, digest)
SELECT DISTINCT ON (book) book, number, digest FROM accounting_ledgerseal ORDER BY book, number DESC;
"""
GUARDS = """
CREATE FUNCTION accounting_seal_only_forwards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.book <> OLD.book OR NEW.number <> OLD.number + 1 THEN
        RAISE EXCEPTION 'a chain of seals only goes on'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER only_forwards BEFORE UPDATE ON accounting_sealedbook
    FOR EACH ROW EXECUTE FUNCTION accounting_seal_only_forwards();
ALTER TABLE accounting_sealedbook ENABLE ALWAYS TRIGGER only_forwards;
CREATE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON accounting_sealedbook
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE accounting_sealedbook ENABLE ALWAYS TRIGGER append_only;
-- A worker of an earlier release knows nothing of the last seals: its seal would leave a book that nobody could seal.
CREATE FUNCTION accounting_check_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM accounting_sealedbook WHERE book = NEW.book AND number >= NEW.number) THEN
        RAISE EXCEPTION 'seal % of book % is not told as its last one', NEW.number, NEW.book
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
-- Names are looked up where the tables are, never in a temporary schema that would shadow them.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION accounting_check_sealed() SET search_path = %I, pg_temp', current_schema());
END $$;
CREATE CONSTRAINT TRIGGER check_sealed AFTER INSERT ON accounting_ledgerseal
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION accounting_check_sealed();
ALTER TABLE accounting_ledgerseal ENABLE ALWAYS TRIGGER check_sealed;
"""
NO_GUARDS = """
DROP TRIGGER check_sealed ON accounting_ledgerseal;
DROP FUNCTION accounting_check_sealed();
DROP TRIGGER only_forwards ON accounting_sealedbook;
DROP TRIGGER append_only ON accounting_sealedbook;
DROP FUNCTION accounting_seal_only_forwards();
"""
# Undone first of all that is undone.
NO_WAY_BACK = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM accounting_ledgerseal WHERE form > 1) THEN
        RAISE EXCEPTION 'the chain of seals has leaves of a form that it could not have before this migration';
    END IF;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0021_closed_hours_sum'),
    ]

    operations = [
        migrations.AddField(
            model_name='ledgerseal',
            name='form',
            field=models.PositiveSmallIntegerField(db_default=1, default=1, help_text='Of its leaves.'),
        ),
        migrations.CreateModel(
            name='SealedBook',
            fields=[
                ('book', models.BigIntegerField(primary_key=True, serialize=False)),
                ('number', models.BigIntegerField()),
                ('digest', models.BinaryField()),
            ],
        ),
        migrations.RunSQL(ENDS, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS, NO_GUARDS),
        migrations.RunSQL(migrations.RunSQL.noop, NO_WAY_BACK),
    ]
