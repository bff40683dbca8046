from django.conf import settings
from django.db import migrations, models


# What held GPUs and never ran did nothing that lasts; of other work nobody wrote down where it began.
NEVER_RAN = """
UPDATE scheduling_lease SET lost_from = held_from
 WHERE state = 'closed' AND running_from IS NULL AND held_from < held_until;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0008_weights'),
        ('scheduling', '0032_labels_of_jobs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='lease',
            name='first_steps',
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name='lease',
            name='first_steps_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='lease',
            name='lost_from',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['first_started_at'], include=('id', 'tenant_id', 'kind', 'created_at', 'workers', 'gpus_per_worker'), name='job_first_started'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['ended_at'], include=('id', 'cluster_id', 'tenant_id', 'kind', 'created_at', 'workers', 'gpus_per_worker'), name='job_ended_anywhere'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('kind', 'training'), ('state__in', ['failed', 'cancelled'])), fields=['ended_at'], include=('id', 'state'), name='training_in_vain'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(condition=models.Q(('lost_from__isnull', False)), fields=['held_until'], name='lost_turns'),
        ),
        migrations.RunSQL(NEVER_RAN, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name='lease',
            constraint=models.CheckConstraint(condition=models.Q(('lost_from', None), models.Q(('lost_from__gte', models.F('held_from')), ('lost_from__lt', models.F('held_until'))), _connector='OR'), name='a_lease_loses_no_more_than_it_held'),
        ),
    ]
