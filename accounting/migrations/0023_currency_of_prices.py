import accounting.models.hardware
from django.db import migrations, models


class Migration(migrations.Migration):
    """Prices that are set already are in the currency that Fairlot has when this runs."""

    dependencies = [
        ('accounting', '0020_seals_of_sums'),
    ]

    operations = [
        migrations.AddField(
            model_name='price',
            name='currency',
            field=models.CharField(default=accounting.models.hardware.present_currency, max_length=3),
        ),
    ]
