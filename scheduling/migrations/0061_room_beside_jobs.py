"""Rounds change the reasons of many jobs: with room beside them that touches none of their indexes.

Of trades few end at a time, and an index tells which have not.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0060_open_trades")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE scheduling_job SET (fillfactor = 70)",
            "ALTER TABLE scheduling_job RESET (fillfactor)",
        ),
        migrations.RunSQL(
            "ALTER TABLE scheduling_trade RESET (fillfactor)",
            "ALTER TABLE scheduling_trade SET (fillfactor = 50)",
        ),
    ]
