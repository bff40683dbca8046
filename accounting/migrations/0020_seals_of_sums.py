"""Seals of the sums of archived months."""

from django.db import migrations, models

NO_WAY_BACK = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM accounting_ledgerseal WHERE of_sums) THEN
        RAISE EXCEPTION 'the chain of seals tells of the sums of archived months, which it could not before this migration';
    END IF;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0019_calls_as_written'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='ledgerseal',
            name='a_transaction_is_sealed_once',
        ),
        migrations.AddField(
            model_name='ledgerseal',
            name='of_sums',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddConstraint(
            model_name='ledgerseal',
            constraint=models.UniqueConstraint(condition=models.Q(('of_sums', False)), fields=('book', 'month', 'first_id'), name='a_transaction_is_sealed_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='ledgerseal',
            constraint=models.CheckConstraint(condition=models.Q(('of_sums', False), ('month__isnull', False), _connector='OR'), name='sums_are_of_a_month'),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, NO_WAY_BACK),
    ]
