"""Whoever pauses a cluster says why; pauses from before said nothing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0006_what_nobody_uses_is_not_lent")]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="paused_reason",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
    ]
