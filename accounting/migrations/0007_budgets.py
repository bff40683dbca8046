import accounting.models.budgets
import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0006_requests'),
    ]

    operations = [
        migrations.CreateModel(
            name='Budget',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('period', models.CharField(choices=[('month', 'a calendar month (UTC)'), ('quarter', 'a calendar quarter (UTC)')], default='month', max_length=10)),
                ('amount', models.DecimalField(decimal_places=2, max_digits=14)),
                ('percentages', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), help_text='At which somebody is warned.', size=None)),
                ('by_forecast', models.BooleanField(default=True)),
                ('webhook_url', models.CharField(blank=True, max_length=500)),
                ('nonce', models.CharField(default=accounting.models.budgets.new_nonce, max_length=16)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='budgets', to='accounting.tenant')),
            ],
            options={
                'ordering': ['tenant', 'period'],
            },
        ),
        migrations.CreateModel(
            name='BudgetWarning',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('begins', models.DateTimeField(help_text='When the period began.')),
                ('threshold', models.CharField(help_text='A percentage, or forecast.', max_length=10)),
                ('amount', models.DecimalField(decimal_places=2, max_digits=14)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('spent', models.DecimalField(decimal_places=6, max_digits=24)),
                ('forecast', models.DecimalField(decimal_places=6, max_digits=24, null=True)),
                ('budget', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='warnings', to='accounting.budget')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.CreateModel(
            name='WebhookCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('identity', models.UUIDField(default=uuid.uuid4, unique=True)),
                ('body', models.TextField()),
                ('written_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('not_before', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('attempts', models.PositiveIntegerField(db_default=0, default=0)),
                ('sent_at', models.DateTimeField(null=True)),
                ('error', models.CharField(blank=True, db_default='', default='', max_length=300)),
                ('budget', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='calls', to='accounting.budget')),
            ],
        ),
        migrations.AddConstraint(
            model_name='budget',
            constraint=models.UniqueConstraint(fields=('tenant', 'period'), name='one_budget_a_tenant_and_period'),
        ),
        migrations.AddConstraint(
            model_name='budget',
            constraint=models.CheckConstraint(condition=models.Q(('amount__gt', 0)), name='a_budget_is_of_some_money'),
        ),
        migrations.AddConstraint(
            model_name='budgetwarning',
            constraint=models.UniqueConstraint(fields=('budget', 'begins', 'threshold', 'amount'), name='one_warning_of_each_kind_a_period'),
        ),
        migrations.AddIndex(
            model_name='webhookcall',
            index=models.Index(condition=models.Q(('sent_at', None)), fields=['not_before'], name='webhook_due'),
        ),
    ]
