"""Jobs that have ended are never due again after a failed start: their index keeps only those that wait."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0058_builds_of_policies")]

    operations = [
        migrations.RemoveIndex(model_name="job", name="job_backs_off"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("not_before__isnull", False), ("state__in", ["queued", "suspended"])),
                fields=["cluster", "not_before"],
                name="job_backs_off",
            ),
        ),
    ]
