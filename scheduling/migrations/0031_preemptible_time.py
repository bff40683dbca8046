import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0030_idle_gpus'),
    ]

    operations = [
        migrations.CreateModel(
            name='PreemptibleTime',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField(help_text='Open at the end while it goes on.')),
                ('lease', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='preemptible', to='scheduling.lease')),
            ],
            options={
                'constraints': [django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('lease', '='), ('during', '&&')], name='a_lease_is_preemptible_once_at_any_moment')],
            },
        ),
    ]
