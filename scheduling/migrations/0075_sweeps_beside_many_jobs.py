"""Constraints and an index of large tables, made without stopping those who write them."""

from django.contrib.postgres.operations import AddIndexConcurrently, ValidateConstraint
from django.db import migrations, models


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('scheduling', '0074_sweeps'),
    ]

    operations = [
        ValidateConstraint(model_name='jobevent', name='codes_of_job_events'),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(condition=models.Q(('sweep__isnull', False)), fields=['sweep', 'sweep_index'], name='job_of_a_sweep'),
        ),
        ValidateConstraint(model_name='job', name='ends_of_jobs'),
        ValidateConstraint(model_name='job', name='a_job_of_a_sweep_has_its_index'),
    ]
