from datetime import timedelta

import django.utils.timezone
from django.db import migrations, models

# Forecasts before this migration do not say when the start was expected, so nothing can be learned from them. Open
# jobs get new ones after the next round.
FORGOTTEN_FORECASTS = "DELETE FROM scheduling_keptforecast"


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0087_terminals'),
    ]

    operations = [
        migrations.RunSQL(FORGOTTEN_FORECASTS, migrations.RunSQL.noop),
        migrations.DeleteModel(name='StartMargins'),
        migrations.RemoveField(model_name='keptforecast', name='below_known'),
        migrations.RemoveField(model_name='keptforecast', name='above_known'),
        migrations.AddField(
            model_name='keptforecast',
            name='age',
            field=models.DurationField(default=timedelta(0)),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='keptforecast',
            name='expected',
            field=models.DateTimeField(default=django.utils.timezone.now),
            preserve_default=False,
        ),
        migrations.AddIndex(
            model_name='keptforecast',
            index=models.Index(fields=['cluster', '-at', '-id'], name='forecasts_of_a_cluster'),
        ),
        migrations.AddConstraint(
            model_name='keptforecast',
            constraint=models.CheckConstraint(condition=models.Q(('at__lte', models.F('expected'))), name='a_start_is_expected_later'),
        ),
    ]
