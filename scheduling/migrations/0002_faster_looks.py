"""Indices for what every tick and every round looks at, so that history does not slow them down."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0001_initial")]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                fields=["cluster"],
                condition=models.Q(("reason", 0), ("state__in", ["queued", "suspended"])),
                name="job_new_to_rounds",
            ),
        ),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(fields=["cluster", "held_until"], name="scheduling__cluster_bde67c_idx"),
        ),
    ]
