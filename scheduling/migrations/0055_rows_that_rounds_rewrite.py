"""Rounds change reasons and balances where they are: with room beside them, and without a change of any index."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0054_expected_run_times_and_deadlines")]

    operations = [
        # A round writes all balances of a cluster: their pages need room for as many again.
        migrations.RunSQL(
            "ALTER TABLE scheduling_sharebalance SET (fillfactor = 40)",
            "ALTER TABLE scheduling_sharebalance RESET (fillfactor)",
        ),
        migrations.RemoveIndex(model_name="job", name="job_new_to_rounds"),
        migrations.AddField(
            model_name="job",
            name="has_no_reason",
            field=models.GeneratedField(
                expression=models.ExpressionWrapper(models.Q(("reason", 0)), models.BooleanField()),
                output_field=models.BooleanField(),
                db_persist=True,
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("has_no_reason", True), ("state__in", ["queued", "suspended"])),
                fields=["cluster"],
                name="job_new_to_rounds",
            ),
        ),
    ]
