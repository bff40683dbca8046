import accounting.models.hardware
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Prices have a currency, those that are set already that of Fairlot when this runs; sums of bills stay when their
    month is archived.
    """

    dependencies = [
        ('accounting', '0022_leaves_apart'),
    ]

    operations = [
        migrations.AddField(
            model_name='price',
            name='currency',
            field=models.CharField(default=accounting.models.hardware.present_currency, max_length=3),
        ),
        migrations.CreateModel(
            name='ArchivedHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('book', models.BigIntegerField()),
                ('month', models.DateField()),
                ('hour', models.DateTimeField(help_text='When it begins.')),
                ('currency', models.CharField(max_length=3)),
                ('price_per_gpu_hour', models.DecimalField(decimal_places=6, max_digits=12)),
                ('correction_id', models.BigIntegerField(help_text='The transaction that took it back; null: it stands.', null=True)),
                ('anew_by_id', models.BigIntegerField(help_text='The correction after which it was booked anew.', null=True)),
                ('gpu_seconds', models.DecimalField(decimal_places=6, max_digits=24)),
                ('cost', models.DecimalField(decimal_places=6, max_digits=24)),
                ('charged', models.DecimalField(decimal_places=6, max_digits=24)),
                ('brought', models.DecimalField(decimal_places=6, max_digits=24)),
                ('generation', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='accounting.generation')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='accounting.tenant')),
            ],
            options={
                'indexes': [models.Index(fields=['tenant', 'hour'], name='archived_hours_of_tenant'), models.Index(fields=['month', 'hour'], name='archived_hours_of_month')],
            },
        ),
    ]
