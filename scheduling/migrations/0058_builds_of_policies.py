"""Rounds tell which build of their policy decided them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0057_room_beside_trades")]

    operations = [
        migrations.AddField(
            model_name="round",
            name="policy_build",
            field=models.CharField(db_default="", max_length=12),
        ),
    ]
