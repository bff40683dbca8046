from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0043_graces_and_failures")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="drain_deadline",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
