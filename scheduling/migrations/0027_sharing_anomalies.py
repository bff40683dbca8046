import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0004_ledger_by_month'),
        ('scheduling', '0026_changes_of_nodes'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='SharingAnalysis',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('begins', models.DateTimeField()),
                ('ends', models.DateTimeField()),
                ('tolerance_seconds', models.FloatField(default=300)),
                ('tolerance_part', models.FloatField(default=0.1)),
                ('asked_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('finished_at', models.DateTimeField(null=True)),
                ('asked_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='sharing_analyses', to='scheduling.cluster')),
            ],
            options={
                'ordering': ['-ends', '-id'],
            },
        ),
        migrations.CreateModel(
            name='SharingAnomaly',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('cause', models.CharField(choices=[('over_borrowing', 'Others borrowed too much'), ('fragmentation', 'Free GPUs were scattered'), ('reservation', 'GPUs were kept for another gang'), ('priority', 'Own other jobs went first'), ('failure', 'Failures, or nodes away'), ('quota', 'Quota used up'), ('pause', 'Cluster paused'), ('slower_gpus', 'Ran on slower GPUs'), ('switching', 'Stopped and started too often'), ('unexplained', 'Unexplained')], max_length=20)),
                ('causes', models.JSONField(default=dict)),
                ('late_seconds', models.FloatField()),
                ('at_end', models.BooleanField()),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('private_started_at', models.DateTimeField()),
                ('private_ended_at', models.DateTimeField(null=True)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='sharing_anomalies', to='scheduling.job')),
            ],
            options={
                'ordering': ['-late_seconds', 'id'],
            },
        ),
        migrations.CreateModel(
            name='AnomalyHolder',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_seconds', models.FloatField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='scheduling.job')),
                ('anomaly', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='holders', to='scheduling.sharinganomaly')),
            ],
            options={
                'ordering': ['-gpu_seconds', 'id'],
            },
        ),
        migrations.CreateModel(
            name='SharingPart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('done_at', models.DateTimeField(null=True)),
                ('trouble', models.CharField(blank=True, default='', max_length=300)),
                ('gpus', models.JSONField(default=dict)),
                ('judged', models.PositiveIntegerField(default=0)),
                ('unfinished', models.PositiveIntegerField(default=0)),
                ('carried', models.PositiveIntegerField(default=0)),
                ('too_large', models.PositiveIntegerField(default=0)),
                ('analysis', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='scheduling.sharinganalysis')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounting.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddField(
            model_name='sharinganomaly',
            name='part',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='anomalies', to='scheduling.sharingpart'),
        ),
        migrations.AddConstraint(
            model_name='sharinganalysis',
            constraint=models.UniqueConstraint(fields=('cluster', 'begins', 'ends'), name='one_analysis_a_period'),
        ),
        migrations.AddConstraint(
            model_name='sharinganalysis',
            constraint=models.CheckConstraint(condition=models.Q(('ends__gt', models.F('begins'))), name='an_analysis_has_a_period'),
        ),
        migrations.AddConstraint(
            model_name='sharinganalysis',
            constraint=models.CheckConstraint(condition=models.Q(('tolerance_part__gte', 0), ('tolerance_seconds__gte', 0)), name='tolerances_are_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='anomalyholder',
            constraint=models.UniqueConstraint(fields=('anomaly', 'job'), name='one_holder_a_job'),
        ),
        migrations.AddConstraint(
            model_name='sharingpart',
            constraint=models.UniqueConstraint(fields=('analysis', 'tenant'), name='one_part_a_team_and_analysis'),
        ),
        migrations.AddIndex(
            model_name='sharinganomaly',
            index=models.Index(fields=['part', '-late_seconds'], name='anomalies_of_part'),
        ),
        migrations.AddConstraint(
            model_name='sharinganomaly',
            constraint=models.UniqueConstraint(fields=('part', 'job'), name='one_anomaly_a_job_and_part'),
        ),
        migrations.AddConstraint(
            model_name='sharinganomaly',
            constraint=models.CheckConstraint(condition=models.Q(('late_seconds__gt', 0)), name='an_anomaly_is_late'),
        ),
    ]
