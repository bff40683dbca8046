from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0022_podgroups_of_a_cluster'),
    ]

    operations = [
        migrations.AddField(
            model_name='clusteraccess',
            name='reachable',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
    ]
