"""Fields and values get the names that the pages, the API and the documentation use: ordering, preemptible, reserved."""

from django.db import migrations, models

SPECS = ("scheduling_job", "scheduling_schedule", "scheduling_servicerevision")
OPTIONS = (
    ("scheduling_cluster", "policy_options"),
    ("scheduling_round", "policy_options"),
    ("scheduling_shadowround", "options"),
)


def rename_key(table: str, column: str, old: str, new: str) -> str:
    return (
        f"UPDATE {table} SET {column} = ({column} - '{old}') || jsonb_build_object('{new}', {column} -> '{old}')"
        f" WHERE jsonb_typeof({column}) = 'object' AND {column} ? '{old}'"
    )


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0061_room_beside_jobs")]

    operations = [
        migrations.RenameField("cluster", "draw", "ordering"),
        migrations.RenameField("round", "draw", "ordering"),
        migrations.RenameField("cluster", "residence_seconds", "min_hold_seconds"),
        migrations.RenameField("job", "only_idle", "preemptible"),
        *(
            migrations.RunSQL(rename_key(table, "spec", "only_idle", "preemptible"), migrations.RunSQL.noop)
            for table in SPECS
        ),
        *(
            migrations.RunSQL(rename_key(table, column, "draw", "ordering"), migrations.RunSQL.noop)
            for table, column in OPTIONS
        ),
        migrations.RemoveConstraint("lease", "one_promised_lease_a_job"),
        migrations.RunSQL(
            "UPDATE scheduling_lease SET state = 'reserved' WHERE state = 'promised'",
            "UPDATE scheduling_lease SET state = 'promised' WHERE state = 'reserved'",
        ),
        migrations.AlterField(
            "idlerule",
            "action",
            models.CharField(
                choices=[
                    ("nothing", "do nothing"),
                    ("warn", "warn"),
                    ("preemptible", "warn, then make preemptible"),
                    ("stop", "warn, then stop"),
                ],
                max_length=12,
            ),
        ),
        migrations.RunSQL(
            "UPDATE scheduling_idlerule SET action = 'preemptible' WHERE action = 'only_idle'", migrations.RunSQL.noop
        ),
    ]
