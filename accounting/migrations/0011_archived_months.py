from django.db import migrations

# Names are looked up where the tables are, as in 0004.
MONTHS = """
CREATE FUNCTION accounting_months_with_vouchers() RETURNS date[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(to_date(right(inhrelid::regclass::text, 7), 'YYYY_MM')), '{}')
    FROM pg_inherits WHERE inhparent = 'accounting_usagesegment'::regclass
$$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION accounting_months_with_vouchers() SET search_path = %I, pg_temp', current_schema());
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("accounting", "0010_prices_of_classes")]

    operations = [
        migrations.RunSQL(MONTHS),
    ]
