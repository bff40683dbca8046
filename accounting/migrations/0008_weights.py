from decimal import Decimal
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0007_budgets'),
    ]

    operations = [
        migrations.AddField(
            model_name='generation',
            name='weight',
            field=models.DecimalField(db_default=Decimal('1'), decimal_places=4, default=Decimal('1'), max_digits=9),
        ),
        migrations.AddConstraint(
            model_name='generation',
            constraint=models.CheckConstraint(condition=models.Q(('weight__gt', 0)), name='weight_is_positive'),
        ),
    ]
