"""Teams and members have tickets for as long as they are in use; nothing is missed; of a limit only the amount changes."""

from django.db import migrations, models

TRIGGERS = """
DROP TRIGGER note_tickets ON accounting_tenant;
DROP TRIGGER note_tickets ON accounting_membership;
DROP FUNCTION IF EXISTS accounting_note_tickets();
CREATE OR REPLACE FUNCTION accounting_note_tickets_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (OLD.tickets, OLD.archived_at IS NULL) = (NEW.tickets, NEW.archived_at IS NULL) THEN
        RETURN NULL;
    END IF;
    INSERT INTO accounting_ticketchange (tenant_id, tickets, at)
    VALUES (NEW.id, CASE WHEN NEW.archived_at IS NULL THEN NEW.tickets END, clock_timestamp());
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION accounting_note_tickets_of_member() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    member accounting_membership := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.tickets = NEW.tickets THEN
        RETURN NULL;
    END IF;
    INSERT INTO accounting_ticketchange (tenant_id, user_id, tickets, at)
    VALUES (
        member.tenant_id, member.user_id, CASE WHEN TG_OP <> 'DELETE' THEN member.tickets END, clock_timestamp()
    );
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION accounting_note_quota() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    quota accounting_quota := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD IS NOT DISTINCT FROM NEW THEN
            RETURN NULL;
        END IF;
        OLD."limit" := NEW."limit";
        IF OLD IS DISTINCT FROM NEW THEN
            RAISE EXCEPTION 'of limit % only the amount may change: another one is another row', NEW.id;
        END IF;
    END IF;
    INSERT INTO accounting_quotachange (
        quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit", at)
    VALUES (
        quota.id, quota.tenant_id, quota.user_id, quota.each_user, quota.generation_id, quota.kind, quota.period,
        quota.days, quota.at_limit, CASE WHEN TG_OP <> 'DELETE' THEN quota."limit" END, clock_timestamp()
    );
    RETURN NULL;
END $$;
CREATE TRIGGER note_tickets AFTER INSERT OR UPDATE ON accounting_tenant
    FOR EACH ROW EXECUTE FUNCTION accounting_note_tickets_of_tenant();
CREATE TRIGGER note_tickets AFTER INSERT OR UPDATE OR DELETE ON accounting_membership
    FOR EACH ROW EXECUTE FUNCTION accounting_note_tickets_of_member();
"""
# What is not as it was last written down: who was archived or has left, and what changed while 0013 was applied. Read
# once the triggers hold the tables, so that nothing is lost any more.
MISSED = """
WITH today AS (
    SELECT id AS tenant_id, NULL::bigint AS user_id, CASE WHEN archived_at IS NULL THEN tickets END AS tickets,
           archived_at AS at
      FROM accounting_tenant
    UNION ALL
    SELECT tenant_id, user_id, tickets, NULL FROM accounting_membership
), noted AS (
    SELECT DISTINCT ON (tenant_id, user_id) tenant_id, user_id, tickets
      FROM accounting_ticketchange ORDER BY tenant_id, user_id, id DESC
)
INSERT INTO accounting_ticketchange (tenant_id, user_id, tickets, at)
SELECT coalesce(today.tenant_id, noted.tenant_id), coalesce(today.user_id, noted.user_id), today.tickets,
       coalesce(today.at, clock_timestamp())
  FROM today FULL JOIN noted
    ON today.tenant_id = noted.tenant_id AND coalesce(today.user_id, 0) = coalesce(noted.user_id, 0)
 WHERE today.tickets IS DISTINCT FROM noted.tickets;
WITH noted AS (
    SELECT DISTINCT ON (quota_id) * FROM accounting_quotachange ORDER BY quota_id, id DESC
)
INSERT INTO accounting_quotachange (
    quota_id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit", at)
SELECT noted.quota_id, noted.tenant_id, noted.user_id, noted.each_user, noted.generation_id, noted.kind, noted.period,
       noted.days, noted.at_limit, quota."limit", clock_timestamp()
  FROM noted LEFT JOIN accounting_quota quota ON quota.id = noted.quota_id
 WHERE quota."limit" IS DISTINCT FROM noted."limit"
UNION ALL
SELECT id, tenant_id, user_id, each_user, generation_id, kind, period, days, at_limit, "limit", clock_timestamp()
  FROM accounting_quota WHERE id NOT IN (SELECT quota_id FROM noted);
"""
# Before it nobody's tickets could end, so these ends go; applied again, they are written down as of then.
UNDO = """
ALTER TABLE accounting_ticketchange DISABLE TRIGGER append_only;
DELETE FROM accounting_ticketchange WHERE tickets IS NULL;
ALTER TABLE accounting_ticketchange ENABLE ALWAYS TRIGGER append_only;
DROP TRIGGER note_tickets ON accounting_tenant;
DROP TRIGGER note_tickets ON accounting_membership;
DROP FUNCTION accounting_note_tickets_of_tenant();
DROP FUNCTION accounting_note_tickets_of_member();
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
CREATE OR REPLACE FUNCTION accounting_note_quota() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0013_past_terms'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='quotachange',
            options={'ordering': ['id']},
        ),
        migrations.AlterModelOptions(
            name='ticketchange',
            options={'ordering': ['id']},
        ),
        migrations.AlterField(
            model_name='ticketchange',
            name='tickets',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.RunSQL(TRIGGERS, UNDO),
        migrations.RunSQL(MISSED, migrations.RunSQL.noop),
    ]
