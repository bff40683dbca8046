"""Webhook calls have the address and the key of the time when they were written."""

from django.db import migrations, models

FROM_BUDGETS = """
UPDATE accounting_webhookcall call SET url = budget.webhook_url, nonce = budget.nonce
  FROM accounting_budget budget WHERE budget.id = call.budget_id;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0018_reports_by_mail'),
    ]

    operations = [
        migrations.AddField(
            model_name='webhookcall',
            name='url',
            field=models.CharField(default='', max_length=500),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='webhookcall',
            name='nonce',
            field=models.CharField(default='', help_text='As that of the budget.', max_length=16),
            preserve_default=False,
        ),
        migrations.RunSQL(FROM_BUDGETS, migrations.RunSQL.noop),
    ]
