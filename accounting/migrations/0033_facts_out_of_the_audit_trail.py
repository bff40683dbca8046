"""Archived months, and who set each price, get columns of their own: until now only the audit trail had them."""

from importlib import import_module
from typing import Any

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

heads = import_module("accounting.migrations.0027_heads")

# As accounting/ledger/journals.py had them when this was written.
BOOK = -10
COLUMNS = f"month, is_archived, rows, digests, seals, {heads.AT}"

ARCHIVES = """
INSERT INTO accounting_archiverecord (month, is_archived, rows, digests, seals, at)
SELECT (after ->> 'month')::date, verb = 'ledger.archive', (after ->> 'rows')::bigint,
       coalesce(after -> 'digests', '{}'), coalesce(after -> 'seals', '{}'), at
  FROM accounting_auditevent WHERE verb IN ('ledger.archive', 'ledger.bring_back') ORDER BY id;
"""
# Of several events about a price the last one counts. The audit trail keeps moments to the millisecond.
PRICES = """
WITH event AS (
    SELECT DISTINCT ON (target_id, since) target_id, (after ->> 'since')::timestamptz AS since, actor_id, at
      FROM accounting_auditevent
     WHERE verb = 'price.set' AND target_type = 'generation' AND after ->> 'since' <> ''
     ORDER BY target_id, since, id DESC
)
UPDATE accounting_price price SET set_by_id = event.actor_id, set_at = event.at
  FROM event
 WHERE event.target_id = price.generation_id::text AND event.since = date_trunc('milliseconds', lower(price.valid));
"""
GUARD = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON accounting_archiverecord
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE accounting_archiverecord ENABLE ALWAYS TRIGGER append_only;
"""


def seal_records(apps: Any, schema_editor: Any) -> None:
    heads.seal_journal(schema_editor.connection, BOOK, "accounting_archiverecord", COLUMNS)
    heads.name_last_seals(schema_editor.connection, f"book = {BOOK}")


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0032_entries_checked_together'),
    ]

    operations = [
        migrations.CreateModel(
            name='ArchiveRecord',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('month', models.DateField()),
                ('is_archived', models.BooleanField(help_text='False: the vouchers are in the database again.')),
                ('rows', models.PositiveBigIntegerField()),
                ('digests', models.JSONField(default=dict, help_text='The SHA-256 of each file, by its name.')),
                ('seals', models.JSONField(default=dict, help_text='By book, the number of the seal that covers what stays.')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddField(
            model_name='price',
            name='set_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='price',
            name='set_by',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('set_by', None), ('set_at__isnull', False), _connector='OR'), name='who_set_a_price_did_so_at_a_moment'),
        ),
        migrations.AddIndex(
            model_name='archiverecord',
            index=models.Index(fields=['month', '-id'], name='archive_records_of_a_month'),
        ),
        migrations.AddConstraint(
            model_name='archiverecord',
            constraint=models.CheckConstraint(condition=models.Q(('month__day', 1)), name='archived_month_begins'),
        ),
        migrations.AddConstraint(
            model_name='archiverecord',
            constraint=models.CheckConstraint(condition=models.Q(('is_archived', True), models.Q(('digests', {}), ('seals', {})), _connector='OR'), name='only_an_archived_month_has_files'),
        ),
        migrations.RunSQL(ARCHIVES, migrations.RunSQL.noop),
        migrations.RunPython(seal_records, migrations.RunPython.noop),
        migrations.RunSQL(PRICES, migrations.RunSQL.noop),
        migrations.RunSQL(heads.CHECK_NOW, migrations.RunSQL.noop),
        migrations.RunSQL(GUARD, migrations.RunSQL.noop),
    ]
