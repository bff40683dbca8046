from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0042_uids_of_teams")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="drain_deadline",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
