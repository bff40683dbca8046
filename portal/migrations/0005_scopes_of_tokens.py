"""Scopes of API tokens. A token that might write has every scope."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

SCOPES = ["work", "team", "cluster"]
GIVEN = "UPDATE portal_apitoken SET scopes = '{work,team,cluster}' WHERE may_write"
TAKEN_BACK = "UPDATE portal_apitoken SET may_write = 'work' = ANY(scopes)"


class Migration(migrations.Migration):
    dependencies = [("portal", "0004_visits_to_services")]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="scopes",
            field=ArrayField(base_field=models.CharField(max_length=16), default=list, size=None),
        ),
        migrations.RunSQL(GIVEN, TAKEN_BACK),
        migrations.RemoveField(model_name="apitoken", name="may_write"),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.CheckConstraint(
                condition=models.Q(("scopes__contained_by", SCOPES)), name="scopes_of_tokens"
            ),
        ),
    ]
