"""Reports for operators by mail, as statements of teams are."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# Before it there were statements alone, and no CSV.
UNDO = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM accounting_reportdelivery WHERE subscription_id IN (
    SELECT id FROM accounting_reportsubscription WHERE tenant_id IS NULL);
DELETE FROM accounting_reportsubscription WHERE tenant_id IS NULL;
UPDATE accounting_reportsubscription SET form = 'link' WHERE form = 'csv';
SET CONSTRAINTS ALL DEFERRED;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0017_past_budgets'),
    ]

    operations = [
        migrations.RenameModel('StatementSubscription', 'ReportSubscription'),
        migrations.RenameModel('StatementDelivery', 'ReportDelivery'),
        migrations.AlterModelOptions(
            name='reportsubscription',
            options={'ordering': ['report', 'tenant__name', 'rhythm']},
        ),
        migrations.RemoveConstraint(model_name='reportdelivery', name='one_statement_a_period'),
        migrations.RemoveConstraint(model_name='reportsubscription', name='one_subscription_a_rhythm'),
        migrations.AddField(
            model_name='reportsubscription',
            name='report',
            field=models.CharField(choices=[('statement', 'Statement'), ('use', 'Use and demand'), ('nodes', 'Nodes'), ('waits', 'Waits'), ('waste', 'Waste'), ('prices', 'Prices'), ('chargeback', 'Chargeback'), ('capacity', 'Capacity'), ('fairness', 'Fairness')], default='statement', max_length=20),
        ),
        migrations.AlterField(
            model_name='reportsubscription',
            name='form',
            field=models.CharField(choices=[('pdf', 'as PDF'), ('xlsx', 'as XLSX'), ('csv', 'as CSV'), ('link', 'as a link only')], default='pdf', max_length=10),
        ),
        migrations.AlterField(
            model_name='reportsubscription',
            name='tenant',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='report_subscriptions', to='accounting.tenant'),
        ),
        migrations.AlterField(
            model_name='reportsubscription',
            name='user',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='report_subscriptions', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='reportdelivery',
            constraint=models.UniqueConstraint(fields=('subscription', 'first'), name='one_report_a_period'),
        ),
        migrations.AddConstraint(
            model_name='reportsubscription',
            constraint=models.UniqueConstraint(fields=('user', 'report', 'tenant', 'rhythm'), name='one_subscription_a_rhythm', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='reportsubscription',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('report', 'statement'), ('tenant__isnull', False)), models.Q(models.Q(('report', 'statement'), _negated=True), ('tenant__isnull', True)), _connector='OR'), name='a_statement_is_of_a_team'),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, UNDO),
    ]
