from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0003_closed_books'),
        ('scheduling', '0024_since_when_jobs_reach_it'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='clusteraccess',
            name='bare_pods',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='job',
            name='is_bare_pod',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('is_bare_pod', False), models.Q(('kind', 'training'), ('workers', 1)), _connector='OR'), name='a_bare_pod_is_one_worker_that_ends'),
        ),
    ]
