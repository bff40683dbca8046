"""Warnings and calls outlive their budget, and a threshold is warned of once a period unless a warning was lifted."""

import django.db.models.deletion
from django.db import migrations, models

# There was one for each amount: of several the latest stands.
LIFT = """
WITH told AS (
    SELECT id, lead(at) OVER (PARTITION BY budget_id, begins, threshold ORDER BY id) AS again
      FROM accounting_budgetwarning
)
UPDATE accounting_budgetwarning warning SET lifted_at = told.again
  FROM told WHERE told.id = warning.id AND told.again IS NOT NULL;
"""
# Before it a removed budget was no row, and nobody was warned twice of the same amount.
UNDO = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM accounting_budgetwarning
 WHERE budget_id IN (SELECT id FROM accounting_budget WHERE removed_at IS NOT NULL);
DELETE FROM accounting_webhookcall
 WHERE budget_id IN (SELECT id FROM accounting_budget WHERE removed_at IS NOT NULL);
DELETE FROM accounting_budget WHERE removed_at IS NOT NULL;
DELETE FROM accounting_budgetwarning earlier USING accounting_budgetwarning later
 WHERE later.id > earlier.id
   AND (later.budget_id, later.begins, later.threshold, later.amount)
     = (earlier.budget_id, earlier.begins, earlier.threshold, earlier.amount);
SET CONSTRAINTS ALL DEFERRED;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0014_past_terms_end'),
    ]

    operations = [
        migrations.AddField(
            model_name='budget',
            name='removed_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='budgetwarning',
            name='lifted_at',
            field=models.DateTimeField(help_text='Since when it may be warned of again.', null=True),
        ),
        migrations.AlterField(
            model_name='budgetwarning',
            name='budget',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='warnings', to='accounting.budget'),
        ),
        migrations.AlterField(
            model_name='webhookcall',
            name='budget',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='calls', to='accounting.budget'),
        ),
        migrations.RemoveConstraint(
            model_name='budgetwarning',
            name='one_warning_of_each_kind_a_period',
        ),
        migrations.RunSQL(LIFT, UNDO),
        migrations.AddConstraint(
            model_name='budgetwarning',
            constraint=models.UniqueConstraint(condition=models.Q(('lifted_at', None)), fields=('budget', 'begins', 'threshold'), name='one_warning_of_each_kind_a_period'),
        ),
    ]
