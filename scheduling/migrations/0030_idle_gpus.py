import datetime

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


# What was billed counts idle time, and the closed hour must count the same.
GUARD = """
CREATE FUNCTION scheduling_keep_billed_idleness() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed timestamptz;  -- the first moment that is idle before or after, and not both
    billed timestamptz;
BEGIN
    IF TG_OP = 'INSERT' THEN
        changed := lower(NEW.during);
    ELSIF TG_OP = 'DELETE' THEN
        changed := lower(OLD.during);
    ELSIF NEW.lease_id <> OLD.lease_id THEN
        changed := '-infinity';
    ELSIF lower(NEW.during) <> lower(OLD.during) THEN
        changed := least(lower(NEW.during), lower(OLD.during));
    ELSE
        changed := least(upper(NEW.during), upper(OLD.during));
    END IF;
    SELECT billed_until INTO billed FROM scheduling_lease
     WHERE id = CASE WHEN TG_OP = 'DELETE' THEN OLD.lease_id ELSE NEW.lease_id END;
    IF changed < billed THEN
        RAISE EXCEPTION 'whether GPUs were idle in billed time does not change any more'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER keep_billed BEFORE INSERT OR UPDATE OR DELETE ON scheduling_idlestretch
    FOR EACH ROW EXECUTE FUNCTION scheduling_keep_billed_idleness();
ALTER TABLE scheduling_idlestretch ENABLE ALWAYS TRIGGER keep_billed;
"""
UNDO = """
DROP TRIGGER keep_billed ON scheduling_idlestretch;
DROP FUNCTION scheduling_keep_billed_idleness();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0008_weights'),
        ('scheduling', '0029_share_hours'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='MetricsSource',
            fields=[
                ('cluster', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='metrics_source', serialize=False, to='scheduling.cluster')),
                ('url', models.CharField(max_length=500)),
                ('query', models.CharField(max_length=1000)),
                ('asked_at', models.DateTimeField(null=True)),
                ('trouble', models.CharField(blank=True, db_default='', default='', max_length=300)),
            ],
        ),
        migrations.CreateModel(
            name='GpuUse',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='gpu_use', serialize=False, to='scheduling.job')),
                ('measured_until', models.DateTimeField()),
                ('measure', models.CharField(choices=[('gpu', 'the use of its GPUs'), ('cpu', 'what its processes do')], max_length=3)),
                ('percent', models.FloatField(help_text="Of its GPUs' time, or of one processor's.")),
                ('used_at', models.DateTimeField(help_text='When its GPUs were last seen in use.', null=True)),
                ('idle_since', models.DateTimeField(null=True)),
                ('idle_for', models.DurationField(help_text='Held without use since then, all turns together.')),
                ('first_told_at', models.DateTimeField(help_text='When it was first warned, or put that off.', null=True)),
                ('warned_at', models.DateTimeField(help_text='Void when they were used since.', null=True)),
                ('idle_warned', models.DurationField(default=datetime.timedelta, help_text='Of idle_for, what came after the warning.')),
                ('snoozed_until', models.DateTimeField(null=True)),
                ('snooze_reason', models.CharField(blank=True, db_default='', default='', max_length=300)),
                ('lease', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduling.lease')),
                ('snoozed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('idle_since__isnull', False)), fields=['idle_since'], name='idle_now')],
            },
        ),
        migrations.CreateModel(
            name='IdleRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(choices=[('nothing', 'do nothing'), ('warn', 'warn'), ('stop', 'warn, then stop')], max_length=10)),
                ('after_minutes', models.PositiveIntegerField(help_text='Held without use for so long: a warning.')),
                ('grace_minutes', models.PositiveIntegerField(help_text='From the warning on.')),
                ('snooze_hours', models.PositiveIntegerField(help_text='For so long owners may put it off; 0: not at all.')),
                ('services', models.BooleanField(help_text='Warn of replicas of services, too; they are never stopped.')),
                ('cluster', models.OneToOneField(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='idle_rule', to='scheduling.cluster')),
                ('tenant', models.OneToOneField(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='idle_rule', to='accounting.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'cluster'), name='one_idle_rule_of_each', nulls_distinct=False), models.CheckConstraint(condition=models.Q(('tenant', None), ('cluster', None), _connector='OR'), name='an_idle_rule_is_of_a_tenant_or_a_cluster'), models.CheckConstraint(condition=models.Q(('after_minutes__range', (1, 527040)), ('grace_minutes__range', (1, 527040))), name='an_idle_rule_waits')],
            },
        ),
        migrations.CreateModel(
            name='IdleStretch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('lease', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='idle_stretches', to='scheduling.lease')),
            ],
            options={
                'constraints': [django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('lease', '='), ('during', '&&')], name='idle_stretches_of_a_lease_are_apart'), models.CheckConstraint(condition=models.Q(('during__isempty', False), ('during__lower_inc', True), ('during__lower_inf', False), ('during__upper_inc', False), ('during__upper_inf', False)), name='an_idle_stretch_has_both_ends')],
            },
        ),
        migrations.RunSQL(GUARD, UNDO),
    ]
