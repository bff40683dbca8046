"""Jobs may say how long they will run, and by when they should have ended."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0053_when_a_policy_wants_to_be_asked")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="expected_seconds",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="deadline",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
