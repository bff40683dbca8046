"""Replicas and sessions that have more than is guaranteed to their account are warned before others claim it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0050_shadow_policies")]

    operations = [
        migrations.AddField(model_name="lease", name="notice_since", field=models.DateTimeField(null=True)),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(
                fields=["cluster", "notice_since"],
                condition=models.Q(("notice_since__isnull", False), models.Q(("state", "closed"), _negated=True)),
                name="lease_on_notice",
            ),
        ),
    ]
