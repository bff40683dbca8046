"""What budgets were, from when to when: written by the database itself whenever they change, and kept."""

from django.db import migrations, models

# The audit trail has it until now, as budgets are set by actions alone. What is in it of a team that is gone is nobody's.
SO_FAR = """
LOCK TABLE accounting_budget IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO accounting_budgetchange (tenant_id, period, amount, at)
SELECT tenant_id, coalesce(after->>'period', before->>'period'), (after->>'amount')::numeric, at
  FROM accounting_auditevent
 WHERE verb IN ('budget.set', 'budget.remove') AND tenant_id IS NOT NULL
   AND coalesce(after->>'period', before->>'period') IS NOT NULL
 ORDER BY id;
INSERT INTO accounting_budgetchange (tenant_id, period, amount)
SELECT tenant_id, period, amount FROM accounting_budget budget
 WHERE removed_at IS NULL AND NOT EXISTS (
    SELECT FROM accounting_budgetchange noted
     WHERE (noted.tenant_id, noted.period) = (budget.tenant_id, budget.period));
"""
TRIGGERS = """
CREATE FUNCTION accounting_note_budget() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    budget accounting_budget := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    amount numeric := CASE WHEN TG_OP <> 'DELETE' AND budget.removed_at IS NULL THEN budget.amount END;
    was numeric := CASE WHEN TG_OP = 'UPDATE' AND OLD.removed_at IS NULL THEN OLD.amount END;
BEGIN
    IF TG_OP = 'UPDATE' AND amount IS NOT DISTINCT FROM was THEN
        RETURN NULL;
    END IF;
    INSERT INTO accounting_budgetchange (tenant_id, period, amount, at)
    VALUES (budget.tenant_id, budget.period, amount, clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER note_budget AFTER INSERT OR UPDATE OR DELETE ON accounting_budget
    FOR EACH ROW EXECUTE FUNCTION accounting_note_budget();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON accounting_budgetchange
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE accounting_budgetchange ENABLE ALWAYS TRIGGER append_only;
"""
UNDO = """
DROP TRIGGER note_budget ON accounting_budget;
DROP FUNCTION accounting_note_budget();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0016_seals_of_what_stays'),
    ]

    operations = [
        migrations.CreateModel(
            name='BudgetChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.BigIntegerField()),
                ('period', models.CharField(choices=[('month', 'a calendar month (UTC)'), ('quarter', 'a calendar quarter (UTC)')], max_length=10)),
                ('amount', models.DecimalField(decimal_places=2, max_digits=14, null=True)),
                ('at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': ['id'],
                'indexes': [models.Index(fields=['tenant_id'], name='budget_changes_of_a_tenant')],
            },
        ),
        migrations.RunSQL(SO_FAR, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, UNDO),
    ]
