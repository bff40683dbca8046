"""A plan may ask for a round before its quantum is over, though nothing happens until then."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0052_length_of_notices")]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="ask_again_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
