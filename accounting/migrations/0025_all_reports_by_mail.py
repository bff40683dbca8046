"""Every report by mail: of a team, or of all teams that its reader sees."""

from django.db import migrations, models

# Before it these were for operators, of all teams, or not at all.
UNDO = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM accounting_reportdelivery WHERE subscription_id IN (
    SELECT id FROM accounting_reportsubscription
     WHERE report IN ('usage', 'idle', 'trades', 'anomalies') OR report = 'fairness' AND tenant_id IS NOT NULL);
DELETE FROM accounting_reportsubscription
 WHERE report IN ('usage', 'idle', 'trades', 'anomalies') OR report = 'fairness' AND tenant_id IS NOT NULL;
SET CONSTRAINTS ALL DEFERRED;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0024_grants_are_overtaken'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='reportsubscription',
            options={'ordering': ['report', 'tenant__name', 'by', 'label', 'rhythm']},
        ),
        migrations.RemoveConstraint(
            model_name='reportsubscription',
            name='one_subscription_a_rhythm',
        ),
        migrations.RemoveConstraint(
            model_name='reportsubscription',
            name='a_statement_is_of_a_team',
        ),
        migrations.AddField(
            model_name='reportsubscription',
            name='by',
            field=models.CharField(blank=True, choices=[('user', 'user'), ('job', 'job'), ('generation', 'GPU'), ('day', 'day'), ('label', 'label'), ('tenant', 'team')], db_default='', default='', max_length=20),
        ),
        migrations.AddField(
            model_name='reportsubscription',
            name='label',
            field=models.CharField(blank=True, db_default='', default='', max_length=400),
        ),
        migrations.AlterField(
            model_name='reportsubscription',
            name='report',
            field=models.CharField(choices=[('statement', 'Statement'), ('use', 'Use and demand'), ('nodes', 'Nodes'), ('waits', 'Waits'), ('waste', 'Waste'), ('prices', 'Prices'), ('chargeback', 'Chargeback'), ('capacity', 'Capacity'), ('fairness', 'Fairness'), ('usage', 'Usage'), ('idle', 'Idle GPUs'), ('trades', 'Trades'), ('anomalies', 'Sharing anomalies')], default='statement', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='reportsubscription',
            constraint=models.UniqueConstraint(fields=('user', 'report', 'tenant', 'by', 'label', 'rhythm'), name='one_subscription_a_rhythm', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='reportsubscription',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('report', 'statement'), ('tenant__isnull', False)), models.Q(models.Q(('report', 'statement'), _negated=True), ('tenant__isnull', True)), ('report__in', ['usage', 'fairness', 'idle', 'trades', 'anomalies']), _connector='OR'), name='a_statement_is_of_a_team'),
        ),
        migrations.AddConstraint(
            model_name='reportsubscription',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('by', 'label'), ('report', 'usage'), models.Q(('label', ''), _negated=True)), models.Q(('label', ''), ('report', 'usage'), models.Q(('by', ''), _negated=True)), models.Q(models.Q(('report', 'usage'), _negated=True), ('by', ''), ('label', '')), _connector='OR'), name='usage_is_by_something'),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, UNDO),
    ]
