"""Pipelines: jobs that need the ends of other jobs.

The next migration validates the constraints of the large tables, and makes the index of jobs."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

# The constraints before this migration do not know these codes.
FORGOTTEN = """
    UPDATE scheduling_jobevent
       SET code = '',
           text = CASE code WHEN 'submitted_by_pipeline' THEN 'Submitted by a pipeline'
                            ELSE 'Cancelled with its pipeline' END
     WHERE code IN ('submitted_by_pipeline', 'pipeline_cancelled');
    UPDATE scheduling_job
       SET end_message = 'Cancelled with its pipeline', end_code = '', end_detail = '{}'
     WHERE end_code = 'pipeline_cancelled'
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0038_plans_kept'),
        ('scheduling', '0077_metrics_of_jobs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Pipeline',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('state', models.CharField(choices=[('running', 'Running'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='running', max_length=9)),
                ('trouble', models.TextField(blank=True, default='')),
                ('counts', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
                ('request_key', models.CharField(max_length=80, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='PipelineStep',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('index', models.PositiveIntegerField()),
                ('name', models.CharField(max_length=40)),
                ('spec', models.JSONField(help_text='The canonical JobSpec.')),
                ('state', models.CharField(choices=[('pending', 'Not submitted'), ('active', 'Submitted'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('cancelled', 'Cancelled'), ('skipped', 'Skipped')], db_default='pending', default='pending', max_length=9)),
                ('reason', models.TextField(blank=True, db_default='', default='')),
                ('attempts', models.PositiveIntegerField(db_default=0, default=0)),
            ],
            options={
                'ordering': ['index'],
            },
        ),
        migrations.CreateModel(
            name='StepNeed',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('when', models.CharField(choices=[('success', 'it succeeds'), ('failure', 'it fails'), ('always', 'it ends in any way')], default='success', max_length=7)),
                ('files', models.BooleanField(default=True)),
            ],
            options={
                'ordering': ['id'],
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
            name='step_index',
            field=models.PositiveIntegerField(null=True),
        ),
        AddConstraintNotValid(
            model_name='jobevent',
            constraint=models.CheckConstraint(condition=models.Q(('code__in', ['', 'submitted', 'submitted_by_schedule', 'submitted_by_sweep', 'submitted_by_pipeline', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'edited', 'tried_now', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'retried', 'resumed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'sweep_cancelled', 'sweep_stopped', 'pipeline_cancelled', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end'])), name='codes_of_job_events'),
        ),
        migrations.AddField(
            model_name='pipeline',
            name='cancelled_by',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='pipeline',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='pipelines', to='scheduling.cluster'),
        ),
        migrations.AddField(
            model_name='pipeline',
            name='owner',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='pipelines', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='pipeline',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='pipelines', to='accounting.tenant'),
        ),
        migrations.AddField(
            model_name='job',
            name='pipeline',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='scheduling.pipeline'),
        ),
        AddConstraintNotValid(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('end_code__in', ['', 'submitted', 'submitted_by_schedule', 'submitted_by_sweep', 'submitted_by_pipeline', 'session_begun', 'replica_made', 'limit_exceeded', 'handed_over', 'shares_again', 'preemptible', 'edited', 'tried_now', 'picked', 'started', 'ready', 'unready', 'frozen', 'unfrozen', 'stopped', 'vanished', 'not_started', 'start_failed', 'retried', 'resumed', 'cluster_said', 'succeeded', 'failed', 'given_up', 'gone', 'cancelled_gone', 'cancelled_early', 'cancelled', 'stopped_by', 'deleted', 'owner_leaves', 'next_run', 'time_limit', 'time_limit_warned', 'sweep_cancelled', 'sweep_stopped', 'pipeline_cancelled', 'service_removed', 'service_stopped', 'service_changes', 'service_shrinks', 'idle_warned', 'idle_snoozed', 'idle_stopped', 'idle_preemptible', 'session_kept', 'session_idle_warned', 'session_idle', 'session_end_warned', 'session_over', 'moved', 'claimed', 'claim_warned', 'own_jobs', 'not_idle', 'preempted', 'team_archived', 'owner_may_not', 'drained', 'node_exchanged', 'node_lost_gpus', 'portal_stopped', 'chosen_node_gone', 'chosen_node_closed', 'chosen_gpus_held', 'imported', 'imported_start', 'imported_end']), ('end_reason__in', ['', 'succeeded', 'failed', 'stopped', 'lost', 'start_failed', 'deleted', 'cancelled'])), name='ends_of_jobs'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.UniqueConstraint(condition=models.Q(('pipeline__isnull', False), models.Q(('state__in', ['succeeded', 'failed', 'cancelled']), _negated=True)), fields=('pipeline', 'step_index'), name='one_living_job_a_step'),
        ),
        AddConstraintNotValid(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('pipeline', None), ('step_index', None)), models.Q(('kind', 'training'), ('pipeline__isnull', False), ('step_index__isnull', False)), _connector='OR'), name='a_job_of_a_pipeline_has_its_step'),
        ),
        migrations.AddField(
            model_name='pipelinestep',
            name='job',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='step', to='scheduling.job'),
        ),
        migrations.AddField(
            model_name='pipelinestep',
            name='pipeline',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='scheduling.pipeline'),
        ),
        migrations.AddField(
            model_name='stepneed',
            name='job',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='needed_by', to='scheduling.job'),
        ),
        migrations.AddField(
            model_name='stepneed',
            name='on',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='needed_by', to='scheduling.pipelinestep'),
        ),
        migrations.AddField(
            model_name='stepneed',
            name='step',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='needs', to='scheduling.pipelinestep'),
        ),
        migrations.AddIndex(
            model_name='pipeline',
            index=models.Index(fields=['tenant', '-id'], name='pipeline_of_a_tenant'),
        ),
        migrations.AddIndex(
            model_name='pipeline',
            index=models.Index(condition=models.Q(('ended_at', None)), fields=['id'], name='pipeline_not_ended'),
        ),
        migrations.AddConstraint(
            model_name='pipeline',
            constraint=models.UniqueConstraint(fields=('owner', 'request_key'), name='one_pipeline_a_request_key'),
        ),
        migrations.AddConstraint(
            model_name='pipeline',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('ended_at', None), ('state', 'running')), ('state', 'cancelled'), models.Q(('ended_at__isnull', False), ('state__in', ['succeeded', 'failed'])), _connector='OR'), name='an_ended_pipeline_says_how'),
        ),
        migrations.AddConstraint(
            model_name='pipelinestep',
            constraint=models.UniqueConstraint(fields=('pipeline', 'index'), name='one_step_an_index'),
        ),
        migrations.AddConstraint(
            model_name='pipelinestep',
            constraint=models.UniqueConstraint(fields=('pipeline', 'name'), name='one_step_a_name'),
        ),
        migrations.AddConstraint(
            model_name='pipelinestep',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('job', None), ('state__in', ['pending', 'skipped'])), models.Q(('job__isnull', False), ('state__in', ['active', 'succeeded', 'failed', 'cancelled'])), _connector='OR'), name='a_submitted_step_has_a_job'),
        ),
        migrations.AddConstraint(
            model_name='stepneed',
            constraint=models.UniqueConstraint(fields=('step', 'on'), name='one_need_of_a_step'),
        ),
        migrations.AddConstraint(
            model_name='stepneed',
            constraint=models.UniqueConstraint(condition=models.Q(('on', None)), fields=('step', 'job'), name='one_need_of_a_job'),
        ),
        migrations.AddConstraint(
            model_name='stepneed',
            constraint=models.CheckConstraint(condition=models.Q(('on__isnull', False), ('job__isnull', False), _connector='OR'), name='a_need_is_of_something'),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, FORGOTTEN),
    ]
