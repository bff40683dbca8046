import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0008_weights'),
    ]

    operations = [
        migrations.CreateModel(
            name='LetterAttachment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('content_type', models.CharField(max_length=100)),
                ('content', models.BinaryField()),
                ('letter', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attachments', to='accounting.letter')),
            ],
        ),
        migrations.CreateModel(
            name='StatementSubscription',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rhythm', models.CharField(choices=[('weekly', 'each Monday, of the week before'), ('monthly', 'on the first of a month, of the month before')], max_length=10)),
                ('form', models.CharField(choices=[('pdf', 'as PDF'), ('xlsx', 'as XLSX'), ('link', 'as a link only')], default='pdf', max_length=10)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='statement_subscriptions', to='accounting.tenant')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='statement_subscriptions', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['tenant__name', 'rhythm'],
            },
        ),
        migrations.CreateModel(
            name='StatementDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('first', models.DateField()),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('subscription', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='accounting.statementsubscription')),
            ],
        ),
        migrations.AddConstraint(
            model_name='statementsubscription',
            constraint=models.UniqueConstraint(fields=('user', 'tenant', 'rhythm'), name='one_subscription_a_rhythm'),
        ),
        migrations.AddConstraint(
            model_name='statementdelivery',
            constraint=models.UniqueConstraint(fields=('subscription', 'first'), name='one_statement_a_period'),
        ),
    ]
