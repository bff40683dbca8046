"""What reports on teams read begins with the team."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0013_past_terms'),
        ('scheduling', '0037_indexes_of_waste'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='joblabel',
            name='one_label_a_key_of_a_job',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='job_first_started',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='job_ended_anywhere',
        ),
        migrations.AlterField(
            model_name='joblabel',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='scheduling.job'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['tenant', 'first_started_at'], include=('kind', 'created_at', 'workers', 'gpus_per_worker', 'first_generation'), name='job_first_started'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['tenant', 'ended_at'], include=('kind', 'created_at', 'workers', 'gpus_per_worker', 'first_generation', 'held_for'), name='job_ended_in_team'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['ended_at'], include=('cluster_id', 'created_at', 'workers', 'gpus_per_worker'), name='job_ended_anywhere'),
        ),
        migrations.AddConstraint(
            model_name='joblabel',
            constraint=models.UniqueConstraint(fields=('job', 'key'), include=('value',), name='one_label_a_key_of_a_job'),
        ),
    ]
