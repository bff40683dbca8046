"""An index of a large table, made without stopping those who write it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('scheduling', '0082_expected_starts'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(fields=['-created_at', '-id'], include=['tenant', 'kind'], name='job_newest'),
        ),
    ]
