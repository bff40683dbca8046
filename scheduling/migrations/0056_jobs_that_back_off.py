"""Whether a job is due again after a failed start is asked each second, of all that wait."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0055_rows_that_rounds_rewrite")]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("not_before__isnull", False)),
                fields=["cluster", "not_before"],
                name="job_backs_off",
            ),
        ),
    ]
