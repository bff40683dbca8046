from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0059_jobs_that_still_back_off")]

    operations = [
        migrations.AddIndex(
            "Trade",
            models.Index(condition=models.Q(("ends", None)), fields=["round"], name="open_trades"),
        ),
    ]
