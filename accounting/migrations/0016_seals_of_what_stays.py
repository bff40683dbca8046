"""Seals of what stays of archived months."""

from django.db import migrations, models

# Without the month such a link could not be told from others, and without the link the chain would be broken.
NO_WAY_BACK = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM accounting_ledgerseal WHERE month IS NOT NULL) THEN
        RAISE EXCEPTION 'the chain of seals tells of archived months, which it could not before this migration';
    END IF;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0015_warnings_stay'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='ledgerseal',
            name='a_transaction_is_sealed_once',
        ),
        migrations.AddField(
            model_name='ledgerseal',
            name='month',
            field=models.DateField(help_text='Of what stays of this archived month; else of all that is new.', null=True),
        ),
        migrations.AddConstraint(
            model_name='ledgerseal',
            constraint=models.UniqueConstraint(fields=('book', 'month', 'first_id'), name='a_transaction_is_sealed_once', nulls_distinct=False),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, NO_WAY_BACK),
    ]
