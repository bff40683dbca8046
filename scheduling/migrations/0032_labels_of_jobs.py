import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0008_weights'),
        ('scheduling', '0031_preemptible_time'),
    ]

    operations = [
        migrations.CreateModel(
            name='JobLabel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=317)),
                ('value', models.CharField(blank=True, max_length=63)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='scheduling.job')),
            ],
            options={
                'ordering': ['key'],
                'indexes': [models.Index(fields=['key', 'value', 'job'], name='label_by_key_and_value')],
                'constraints': [models.UniqueConstraint(fields=('job', 'key'), name='one_label_a_key_of_a_job')],
            },
        ),
        migrations.CreateModel(
            name='LabelKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=317)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='label_keys', to='accounting.tenant')),
            ],
            options={
                'ordering': ['key'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'key'), name='one_label_key_a_tenant')],
            },
        ),
    ]
