"""Sweeps: many jobs of one specification that differ in their parameters.

The next migration validates the constraints of the large tables, and makes the index of jobs."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0038_plans_kept'),
        ('scheduling', '0073_retries_of_jobs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Sweep',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('spec', models.JSONField(help_text='The canonical JobSpec, before parameters are put in.')),
                ('parameters', models.JSONField(help_text='The description of the members: scheduling/sweeps/parameters.py.')),
                ('names', models.JSONField(default=list)),
                ('size', models.PositiveIntegerField()),
                ('at_once', models.PositiveIntegerField(null=True)),
                ('metric', models.CharField(blank=True, default='', max_length=40)),
                ('goal', models.CharField(choices=[('min', 'Lower is better'), ('max', 'Higher is better')], default='min', max_length=3)),
                ('stop_at', models.FloatField(null=True)),
                ('stop_cancels', models.BooleanField(default=False)),
                ('state', models.CharField(choices=[('running', 'Running'), ('finished', 'Finished'), ('stopped', 'Stopped'), ('cancelled', 'Cancelled')], default='running', max_length=9)),
                ('stopped_by', models.PositiveIntegerField(null=True)),
                ('trouble', models.TextField(blank=True, default='')),
                ('counts', models.JSONField(default=dict)),
                ('metric_names', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
                ('request_key', models.CharField(max_length=80, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='SweepMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('index', models.PositiveIntegerField()),
                ('parameters', models.JSONField(default=dict)),
                ('state', models.CharField(choices=[('pending', 'Not submitted'), ('active', 'Submitted'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('cancelled', 'Cancelled'), ('skipped', 'Skipped')], db_default='pending', default='pending', max_length=9)),
                ('attempts', models.PositiveIntegerField(db_default=0, default=0)),
                ('metrics', models.JSONField(db_default={}, default=dict)),
            ],
            options={
                'ordering': ['index'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='job',
            name='ends_of_jobs',
        ),
        migrations.RemoveConstraint(
            model_name='jobevent',
            name='codes_of_job_events',
        ),
        migrations.AddField(
            model_name='job',
            name='sweep_index',
            field=models.PositiveIntegerField(null=True),
        ),
        AddConstraintNotValid(
            model_name='jobevent',
            constraint=models.CheckConstraint(condition=models.Q(('code__in', ['', 'submitted', 'submitted_by_schedule', 'submitted_by_sweep', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'edited', 'tried_now', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'retried', 'resumed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'sweep_cancelled', 'sweep_stopped', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end'])), name='codes_of_job_events'),
        ),
        migrations.AddField(
            model_name='sweep',
            name='cancelled_by',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='sweep',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='sweeps', to='scheduling.cluster'),
        ),
        migrations.AddField(
            model_name='sweep',
            name='owner',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='sweeps', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='sweep',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='sweeps', to='accounting.tenant'),
        ),
        migrations.AddField(
            model_name='job',
            name='sweep',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='scheduling.sweep'),
        ),
        AddConstraintNotValid(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('end_code__in', ['', 'submitted', 'submitted_by_schedule', 'submitted_by_sweep', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'edited', 'tried_now', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'retried', 'resumed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'sweep_cancelled', 'sweep_stopped', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end']), ('end_reason__in', ['', 'succeeded', 'failed', 'stopped', 'lost', 'start_failed', 'deleted', 'cancelled'])), name='ends_of_jobs'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.UniqueConstraint(condition=models.Q(('sweep__isnull', False), models.Q(('state__in', ['succeeded', 'failed', 'cancelled']), _negated=True)), fields=('sweep', 'sweep_index'), name='one_living_job_a_member'),
        ),
        AddConstraintNotValid(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('sweep', None), ('sweep_index', None)), models.Q(('kind', 'training'), ('sweep__isnull', False), ('sweep_index__isnull', False)), _connector='OR'), name='a_job_of_a_sweep_has_its_index'),
        ),
        migrations.AddField(
            model_name='sweepmember',
            name='job',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='member', to='scheduling.job'),
        ),
        migrations.AddField(
            model_name='sweepmember',
            name='sweep',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='members', to='scheduling.sweep'),
        ),
        migrations.AddIndex(
            model_name='sweep',
            index=models.Index(fields=['tenant', '-id'], name='sweep_of_a_tenant'),
        ),
        migrations.AddIndex(
            model_name='sweep',
            index=models.Index(condition=models.Q(('ended_at', None)), fields=['id'], name='sweep_not_ended'),
        ),
        migrations.AddConstraint(
            model_name='sweep',
            constraint=models.UniqueConstraint(fields=('owner', 'request_key'), name='one_sweep_a_request_key'),
        ),
        migrations.AddConstraint(
            model_name='sweep',
            constraint=models.CheckConstraint(condition=models.Q(('stop_at', None), models.Q(('metric', ''), _negated=True), _connector='OR'), name='a_stop_rule_has_a_metric'),
        ),
        migrations.AddConstraint(
            model_name='sweep',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'finished'), _negated=True), ('ended_at__isnull', False), _connector='OR'), name='a_finished_sweep_has_ended'),
        ),
        migrations.AddIndex(
            model_name='sweepmember',
            index=models.Index(fields=['sweep', 'state', 'index'], name='member_by_state'),
        ),
        migrations.AddConstraint(
            model_name='sweepmember',
            constraint=models.UniqueConstraint(fields=('sweep', 'index'), name='one_member_an_index'),
        ),
        migrations.AddConstraint(
            model_name='sweepmember',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('job', None), ('state__in', ['pending', 'skipped'])), models.Q(('job__isnull', False), ('state__in', ['active', 'succeeded', 'failed', 'cancelled'])), _connector='OR'), name='a_submitted_member_has_a_job'),
        ),
    ]
