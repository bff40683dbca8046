"""When a job's log and checkpoints were deleted, and which ended jobs still have theirs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0003_drop_reason_detail")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="files_removed_at",
            field=models.DateTimeField(help_text="When log and checkpoints were deleted.", null=True),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("files_removed_at", None)), fields=["ended_at"], name="job_with_files"
            ),
        ),
    ]
