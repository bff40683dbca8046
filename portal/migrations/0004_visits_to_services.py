"""Ways into services, beside those into sessions."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0003_password_tries"), ("scheduling", "0051_notices_before_preemption")]

    operations = [
        migrations.AddField(
            model_name="visit",
            name="service",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="visits",
                to="scheduling.service",
            ),
        ),
        migrations.AlterField(
            model_name="visit",
            name="session",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="visits",
                to="scheduling.session",
            ),
        ),
        migrations.AddConstraint(
            model_name="visit",
            constraint=models.CheckConstraint(
                name="a_visit_is_to_one",
                condition=models.Q(("service", None), ("session__isnull", False))
                | models.Q(("service__isnull", False), ("session", None)),
            ),
        ),
    ]
