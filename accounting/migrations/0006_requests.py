import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0005_limits'),
    ]

    operations = [
        migrations.CreateModel(
            name='Letter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('identity', models.UUIDField(default=uuid.uuid4, unique=True)),
                ('address', models.EmailField(max_length=254)),
                ('subject', models.CharField(max_length=200)),
                ('text', models.TextField()),
                ('written_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('not_before', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('attempts', models.PositiveIntegerField(db_default=0, default=0)),
                ('sent_at', models.DateTimeField(null=True)),
                ('error', models.CharField(blank=True, db_default='', default='', max_length=300)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('sent_at', None)), fields=['not_before'], name='letter_due')],
            },
        ),
        migrations.CreateModel(
            name='Request',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('tickets', 'Tickets'), ('limit', 'Limit'), ('extension', 'More time'), ('team', 'New team')], max_length=10)),
                ('asked_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('reason', models.TextField()),
                ('wanted', models.JSONField(default=dict)),
                ('until', models.DateTimeField(help_text='When it shall end; empty: it stays.', null=True)),
                ('state', models.CharField(choices=[('open', 'Open'), ('approved', 'Approved'), ('declined', 'Declined'), ('withdrawn', 'Withdrawn')], db_default='open', default='open', max_length=10)),
                ('decided_at', models.DateTimeField(null=True)),
                ('answer', models.TextField(blank=True, db_default='', default='')),
                ('granted', models.JSONField(help_text='As `wanted`, which the operator may have changed.', null=True)),
                ('target', models.CharField(blank=True, db_default='', default='', max_length=200)),
                ('former', models.CharField(blank=True, db_default='', default='', help_text='Empty: none.', max_length=40)),
                ('ends_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('ending', models.CharField(blank=True, db_default='', default='', max_length=200)),
                ('asked_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('decided_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('extends', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='extensions', to='accounting.request')),
                ('tenant', models.ForeignKey(help_text='Of a new team the one above it.', on_delete=django.db.models.deletion.PROTECT, related_name='requests', to='accounting.tenant')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(condition=models.Q(('ended_at', None), ('ends_at__isnull', False), ('state', 'approved')), fields=['ends_at'], name='grants_that_will_end')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('extends__isnull', False), ('kind', 'extension')), models.Q(models.Q(('kind', 'extension'), _negated=True), ('extends', None)), _connector='OR'), name='an_extension_is_of_a_request'), models.CheckConstraint(condition=models.Q(models.Q(('decided_at', None), ('state', 'open')), models.Q(models.Q(('state', 'open'), _negated=True), ('decided_at__isnull', False)), _connector='OR'), name='a_decision_has_a_moment'), models.CheckConstraint(condition=models.Q(models.Q(('granted__isnull', False), ('state', 'approved')), models.Q(models.Q(('state', 'approved'), _negated=True), ('ended_at', None), ('ends_at', None), ('granted', None)), _connector='OR'), name='what_is_granted_is_approved')],
            },
        ),
    ]
