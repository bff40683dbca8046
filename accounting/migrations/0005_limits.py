import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0004_ledger_by_month'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='quota',
            options={'ordering': ['tenant', 'kind', 'generation', 'user', 'pk']},
        ),
        migrations.RemoveConstraint(
            model_name='quota',
            name='one_quota_a_tenant_kind_and_generation',
        ),
        migrations.AddField(
            model_name='quota',
            name='at_limit',
            field=models.CharField(choices=[('block', 'block'), ('idle', 'only idle GPUs'), ('warn', 'warn')], db_default='block', default='block', max_length=10),
        ),
        migrations.AddField(
            model_name='quota',
            name='days',
            field=models.PositiveSmallIntegerField(blank=True, help_text='Of a rolling period.', null=True),
        ),
        migrations.AddField(
            model_name='quota',
            name='each_user',
            field=models.BooleanField(db_default=False, default=False, help_text='Of every user by themselves.'),
        ),
        migrations.AddField(
            model_name='quota',
            name='period',
            field=models.CharField(blank=True, choices=[('month', 'a calendar month (UTC)'), ('quarter', 'a calendar quarter (UTC)'), ('rolling', 'in the last days')], db_default='', default='', max_length=10),
        ),
        migrations.AddField(
            model_name='quota',
            name='user',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='quotas', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='quota',
            name='kind',
            field=models.CharField(choices=[('gpus', 'GPUs at once'), ('gpu_hours', 'GPU-hours'), ('money', 'Money'), ('queued_jobs', 'Queued jobs'), ('longest_run', 'Longest run in hours'), ('borrowed', 'Borrowed, as a part of the entitlement')], max_length=20),
        ),
        migrations.RunSQL(
            "UPDATE accounting_quota SET kind = 'gpu_hours', period = 'month' WHERE kind = 'gpu_hours_month'",
            migrations.RunSQL.noop,
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.UniqueConstraint(fields=('tenant', 'user', 'each_user', 'kind', 'generation', 'period', 'days', 'at_limit'), name='one_quota_of_each_kind', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(('each_user', False), ('user', None), _connector='OR'), name='a_quota_of_each_user_names_none'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['gpu_hours', 'money']), ('period', ''), _connector='XOR'), name='what_is_used_up_has_a_period'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('days__gte', 1), ('days__isnull', False), ('days__lte', 366), ('period', 'rolling')), models.Q(models.Q(('period', 'rolling'), _negated=True), ('days', None)), _connector='OR'), name='a_rolling_period_has_days'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind__in', ['queued_jobs', 'longest_run']), _negated=True), ('generation', None), _connector='OR'), name='a_quota_without_generation'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('at_limit', 'idle'), _negated=True), ('kind__in', ['gpus', 'gpu_hours', 'money']), _connector='OR'), name='idle_gpus_are_for_some_kinds'),
        ),
    ]
