"""What gangs hold without any process on their GPUs is kept, as a part of what they hold without use."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0040_causes_of_anomalies'),
    ]

    operations = [
        migrations.AddField(
            model_name='gpuuse',
            name='processless_since',
            field=models.DateTimeField(help_text='Since then no process is on its GPUs.', null=True),
        ),
        migrations.CreateModel(
            name='ProcesslessStretch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('during', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('lease', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='processless_stretches', to='scheduling.lease')),
            ],
            options={
                'indexes': [django.contrib.postgres.indexes.GistIndex(fields=['during'], name='processless_by_time')],
                'constraints': [django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('lease', '='), ('during', '&&')], name='processless_stretches_of_a_lease_are_apart'), models.CheckConstraint(condition=models.Q(('during__isempty', False), ('during__lower_inc', True), ('during__lower_inf', False), ('during__upper_inc', False), ('during__upper_inf', False)), name='a_processless_stretch_has_both_ends')],
            },
        ),
    ]
