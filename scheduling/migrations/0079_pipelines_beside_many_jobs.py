"""Constraints and an index of large tables, made without stopping those who write them."""

from django.contrib.postgres.operations import AddIndexConcurrently, ValidateConstraint
from django.db import migrations, models


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('scheduling', '0078_pipelines'),
    ]

    operations = [
        ValidateConstraint(model_name='jobevent', name='codes_of_job_events'),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(condition=models.Q(('pipeline__isnull', False)), fields=['pipeline', 'step_index'], name='job_of_a_pipeline'),
        ),
        ValidateConstraint(model_name='job', name='ends_of_jobs'),
        ValidateConstraint(model_name='job', name='a_job_of_a_pipeline_has_its_step'),
    ]
