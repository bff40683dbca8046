import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0004_ledger_by_month'),
        ('scheduling', '0027_sharing_anomalies'),
    ]

    operations = [
        migrations.CreateModel(
            name='TradeLimit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trades', models.BooleanField(help_text='False: it is neither given nor taken.')),
                ('most_gpus', models.DecimalField(blank=True, decimal_places=3, help_text='Most GPUs given away at once.', max_digits=9, null=True)),
                ('most_part', models.DecimalField(blank=True, decimal_places=4, help_text='The same as a part of the entitlement.', max_digits=5, null=True)),
                ('generation', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, to='accounting.generation')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trade_limits', to='accounting.tenant')),
            ],
            options={
                'ordering': ['tenant', models.OrderBy(models.F('generation__name'), nulls_last=True)],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'generation'), name='one_trade_limit_a_generation', nulls_distinct=False), models.CheckConstraint(condition=models.Q(('most_gpus__isnull', True), ('most_gpus__gte', 0), _connector='OR'), name='trade_limit_is_not_negative'), models.CheckConstraint(condition=models.Q(('most_part__isnull', True), ('most_part__range', (0, 1)), _connector='OR'), name='traded_part_is_a_part'), models.CheckConstraint(condition=models.Q(('trades', True), models.Q(('most_gpus__isnull', True), ('most_part__isnull', True)), _connector='OR'), name='what_is_not_traded_has_no_limit')],
            },
        ),
    ]
