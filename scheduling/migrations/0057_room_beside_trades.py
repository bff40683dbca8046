"""Each trade is changed once, when it ends: with room beside it that touches none of its indexes."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0056_jobs_that_back_off")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE scheduling_trade SET (fillfactor = 50)",
            "ALTER TABLE scheduling_trade RESET (fillfactor)",
        ),
    ]
