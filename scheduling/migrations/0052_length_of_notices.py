"""How long the people of services and sessions are warned is a setting of each cluster."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0051_notices_before_preemption")]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="notice_seconds",
            field=models.FloatField(default=60, db_default=60),
        ),
    ]
