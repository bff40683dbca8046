from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0012_indexes_of_reports'),
        ('scheduling', '0036_what_jobs_held'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='job',
            name='training_in_vain',
        ),
        migrations.RemoveIndex(
            model_name='lease',
            name='lost_turns',
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('kind', 'training'), ('state__in', ['failed', 'cancelled'])), fields=['ended_at'], include=('id', 'state', 'first_started_at'), name='training_in_vain'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(condition=models.Q(('lost_from__isnull', False)), fields=['held_until'], include=('job', 'generation', 'gpus', 'lost_from'), name='lost_turns'),
        ),
    ]
