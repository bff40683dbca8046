import datetime
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# Of jobs of before, as their leases tell it. What is to be checked at commit is checked at once, as PostgreSQL changes
# no table of which checks are still to come.
FILL = """
    UPDATE scheduling_job AS job
       SET first_generation_id = held.turns[1][2], held_for = held.seconds * interval '1 second'
      FROM (SELECT job_id, array_agg(ARRAY[epoch, generation_id] ORDER BY epoch) AS turns,
                   coalesce(sum(extract(epoch FROM held_until - held_from)), 0) AS seconds
              FROM scheduling_lease WHERE held_from IS NOT NULL GROUP BY job_id) AS held
     WHERE held.job_id = job.id AND job.first_started_at IS NOT NULL;
    SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0012_indexes_of_reports'),
        ('scheduling', '0035_indexes_of_reports'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='lease',
            name='one_lease_a_job_and_epoch',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='job_first_started',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='job_ended_anywhere',
        ),
        migrations.AddField(
            model_name='job',
            name='first_generation',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounting.generation'),
        ),
        migrations.AddField(
            model_name='job',
            name='held_for',
            field=models.DurationField(db_default=datetime.timedelta(0), default=datetime.timedelta(0)),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['first_started_at'], include=('tenant_id', 'kind', 'created_at', 'workers', 'gpus_per_worker', 'first_generation'), name='job_first_started'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['ended_at'], include=('cluster_id', 'tenant_id', 'kind', 'created_at', 'workers', 'gpus_per_worker', 'first_generation', 'held_for'), name='job_ended_anywhere'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('first_generation', None), ('first_started_at', None), ('held_for', datetime.timedelta(0))), models.Q(('first_generation__isnull', False), ('first_started_at__isnull', False), ('held_for__gte', datetime.timedelta(0))), _connector='OR'), name='what_held_gpus_says_which'),
        ),
        migrations.AddConstraint(
            model_name='lease',
            constraint=models.UniqueConstraint(fields=('job', 'epoch'), name='one_lease_a_job_and_epoch'),
        ),
    ]
