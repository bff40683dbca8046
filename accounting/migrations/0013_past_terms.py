"""What tickets and limits were, from when to when: written by the database itself whenever they change, and kept."""

from django.db import migrations, models

# As they are now, and as far as anybody knows were before; from now on the database writes it down.
SO_FAR = """
INSERT INTO accounting_ticketchange (tenant_id, user_id, tickets)
SELECT id, NULL, tickets FROM accounting_tenant
UNION ALL
SELECT tenant_id, user_id, tickets FROM accounting_membership;
INSERT INTO accounting_quotachange (
    quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit")
SELECT id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit" FROM accounting_quota;
"""
TRIGGERS = """
CREATE FUNCTION accounting_note_tickets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.tickets = NEW.tickets THEN
        RETURN NULL;
    END IF;
    IF TG_TABLE_NAME = 'accounting_tenant' THEN
        INSERT INTO accounting_ticketchange (tenant_id, tickets, at)
        VALUES (NEW.id, NEW.tickets, clock_timestamp());
    ELSE
        INSERT INTO accounting_ticketchange (tenant_id, user_id, tickets, at)
        VALUES (NEW.tenant_id, NEW.user_id, NEW.tickets, clock_timestamp());
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION accounting_note_quota() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    quota accounting_quota := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD IS NOT DISTINCT FROM NEW THEN
        RETURN NULL;
    END IF;
    INSERT INTO accounting_quotachange (
        quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit", at)
    VALUES (
        quota.id, quota.tenant_id, quota.user_id, quota.each_user, quota.generation_id, quota.kind, quota.period,
        quota.days, quota.at_limit, CASE WHEN TG_OP <> 'DELETE' THEN quota."limit" END, clock_timestamp()
    );
    RETURN NULL;
END $$;
CREATE TRIGGER note_tickets AFTER INSERT OR UPDATE OF tickets ON accounting_tenant
    FOR EACH ROW EXECUTE FUNCTION accounting_note_tickets();
CREATE TRIGGER note_tickets AFTER INSERT OR UPDATE OF tickets ON accounting_membership
    FOR EACH ROW EXECUTE FUNCTION accounting_note_tickets();
CREATE TRIGGER note_quota AFTER INSERT OR UPDATE OR DELETE ON accounting_quota
    FOR EACH ROW EXECUTE FUNCTION accounting_note_quota();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON accounting_ticketchange
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON accounting_quotachange
    FOR EACH STATEMENT EXECUTE FUNCTION accounting_refuse_change();
ALTER TABLE accounting_ticketchange ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE accounting_quotachange ENABLE ALWAYS TRIGGER append_only;
"""
UNDO = """
DROP TRIGGER note_tickets ON accounting_tenant;
DROP TRIGGER note_tickets ON accounting_membership;
DROP TRIGGER note_quota ON accounting_quota;
DROP FUNCTION accounting_note_tickets();
DROP FUNCTION accounting_note_quota();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0012_indexes_of_reports'),
    ]

    operations = [
        migrations.CreateModel(
            name='QuotaChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('quota_id', models.BigIntegerField()),
                ('tenant_id', models.BigIntegerField()),
                ('user_id', models.BigIntegerField(null=True)),
                ('each_user', models.BooleanField()),
                ('generation_id', models.BigIntegerField(null=True)),
                ('kind', models.CharField(choices=[('gpus', 'GPUs at once'), ('gpu_hours', 'GPU-hours'), ('money', 'Money'), ('queued_jobs', 'Queued jobs'), ('longest_run', 'Longest run in hours'), ('borrowed', 'Borrowed, as a part of the entitlement')], max_length=20)),
                ('period', models.CharField(blank=True, choices=[('month', 'a calendar month (UTC)'), ('quarter', 'a calendar quarter (UTC)'), ('rolling', 'in the last days')], max_length=10)),
                ('days', models.PositiveSmallIntegerField(null=True)),
                ('at_limit', models.CharField(choices=[('block', 'block'), ('idle', 'only idle GPUs'), ('warn', 'warn')], max_length=10)),
                ('limit', models.DecimalField(decimal_places=3, max_digits=14, null=True)),
                ('at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': [models.OrderBy(models.F('at'), nulls_first=True), 'id'],
            },
        ),
        migrations.CreateModel(
            name='TicketChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tenant_id', models.BigIntegerField()),
                ('user_id', models.BigIntegerField(null=True)),
                ('tickets', models.PositiveIntegerField()),
                ('at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': [models.OrderBy(models.F('at'), nulls_first=True), 'id'],
            },
        ),
        migrations.RunSQL(SO_FAR, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, UNDO),
    ]
