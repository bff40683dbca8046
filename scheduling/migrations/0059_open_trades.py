from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0058_builds_of_policies")]

    operations = [
        migrations.AddIndex(
            "Trade",
            models.Index(condition=models.Q(("ends", None)), fields=["round"], name="open_trades"),
        ),
    ]
