import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0008_weights'),
        ('scheduling', '0028_limits_of_trades'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='FinishTime',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='finish_time', serialize=False, to='scheduling.job')),
                ('ended_at', models.DateTimeField()),
                ('seconds', models.FloatField(help_text='From submit to end.')),
                ('rho', models.FloatField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='ShareBook',
            fields=[
                ('cluster', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='share_book', serialize=False, to='scheduling.cluster')),
                ('since', models.DateTimeField()),
                ('until', models.DateTimeField(help_text='Hours from here on are not summed yet.')),
            ],
        ),
        migrations.CreateModel(
            name='ShareHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField()),
                ('entitled', models.FloatField()),
                ('received', models.FloatField()),
                ('lent', models.FloatField()),
                ('unused', models.FloatField()),
                ('borrowed', models.FloatField()),
                ('bought', models.FloatField()),
                ('sold', models.FloatField()),
            ],
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['cluster', 'ended_at'], name='job_ended'),
        ),
        migrations.AddIndex(
            model_name='shareinterval',
            index=django.contrib.postgres.indexes.GistIndex(models.Func('begins', 'ends', function='tstzrange', output_field=django.contrib.postgres.fields.DateTimeRangeField()), name='intervals_in_time'),
        ),
        migrations.AddField(
            model_name='finishtime',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='scheduling.cluster'),
        ),
        migrations.AddField(
            model_name='finishtime',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='accounting.tenant'),
        ),
        migrations.AddConstraint(
            model_name='sharebook',
            constraint=models.CheckConstraint(condition=models.Q(('until__gte', models.F('since'))), name='summed_hours_come_in_order'),
        ),
        migrations.AddField(
            model_name='sharehour',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='scheduling.cluster'),
        ),
        migrations.AddField(
            model_name='sharehour',
            name='generation',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='accounting.generation'),
        ),
        migrations.AddField(
            model_name='sharehour',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='accounting.tenant'),
        ),
        migrations.AddIndex(
            model_name='finishtime',
            index=models.Index(fields=['ended_at'], name='scheduling__ended_a_cdbd6e_idx'),
        ),
        migrations.AddConstraint(
            model_name='finishtime',
            constraint=models.CheckConstraint(condition=models.Q(('seconds__gte', 0), models.Q(('rho', None), ('rho__gt', 0), _connector='OR')), name='finish_times_are_not_negative'),
        ),
        migrations.AddIndex(
            model_name='sharehour',
            index=models.Index(fields=['hour'], name='scheduling__hour_d524ab_idx'),
        ),
        migrations.AddConstraint(
            model_name='sharehour',
            constraint=models.UniqueConstraint(fields=('cluster', 'tenant', 'generation', 'hour'), name='one_share_hour_each'),
        ),
    ]
