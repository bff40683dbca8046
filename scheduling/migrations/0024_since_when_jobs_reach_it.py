from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0023_what_jobs_reach'),
    ]

    operations = [
        migrations.AddField(
            model_name='clusteraccess',
            name='reachable_since',
            field=models.DateTimeField(null=True),
        ),
    ]
