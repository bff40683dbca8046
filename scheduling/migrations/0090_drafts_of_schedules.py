from typing import Any

from django.db import migrations, models


def forget(apps: Any, schema_editor: Any) -> None:
    """Deletes the drafts of a kind that the earlier version does not know."""
    apps.get_model("scheduling", "Draft").objects.filter(kind="schedule").delete()


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0089_templates")]

    operations = [
        migrations.AlterField(
            model_name="draft",
            name="kind",
            field=models.CharField(
                choices=[
                    ("job", "Job"),
                    ("sweep", "Sweep"),
                    ("pipeline", "Pipeline"),
                    ("schedule", "Schedule"),
                ],
                max_length=8,
            ),
        ),
        migrations.RunPython(migrations.RunPython.noop, forget),
    ]
