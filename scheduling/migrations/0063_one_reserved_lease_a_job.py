"""After the values of 0062: PostgreSQL builds no index in the transaction that changed the rows of its table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0062_words_of_the_field")]

    operations = [
        migrations.AlterField(
            "lease",
            "state",
            models.CharField(
                choices=[
                    ("reserved", "Reserved"),
                    ("starting", "Starting"),
                    ("running", "Running"),
                    ("stopping", "Stopping"),
                    ("closed", "Closed"),
                ],
                default="reserved",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            "lease",
            models.UniqueConstraint(
                condition=models.Q(state="reserved"), fields=("job",), name="one_reserved_lease_a_job"
            ),
        ),
    ]
