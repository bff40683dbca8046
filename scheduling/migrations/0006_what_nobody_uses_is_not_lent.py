"""What a tenant leaves of its entitlement and nobody uses is unused, not lent; past intervals are split too."""

from django.db import migrations, models

SPLIT = """
    UPDATE scheduling_shareinterval AS one
       SET lent = one.lent * whole.part, unused = one.lent * (1 - whole.part)
      FROM (SELECT round_id, generation_id, sum(borrowed) / sum(lent) AS part
              FROM scheduling_shareinterval GROUP BY 1, 2 HAVING sum(lent) > sum(borrowed)) AS whole
     WHERE one.round_id = whole.round_id AND one.generation_id = whole.generation_id
"""
JOIN = "UPDATE scheduling_shareinterval SET lent = lent + unused WHERE unused <> 0"


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0005_a_gang_that_moves_has_a_promise")]

    operations = [
        migrations.AddField(
            model_name="shareinterval",
            name="unused",
            field=models.FloatField(default=0, db_default=0),
        ),
        migrations.RunSQL(SPLIT, JOIN),
    ]
