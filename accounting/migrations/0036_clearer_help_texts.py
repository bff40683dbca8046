from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0035_plain_help_texts'),
    ]

    operations = [
        migrations.AlterField(
            model_name='archiverecord',
            name='is_archived',
            field=models.BooleanField(help_text='True: the vouchers (detailed usage rows) were moved to files. False: they were moved back to the database.'),
        ),
        migrations.AlterField(
            model_name='archiverecord',
            name='seals',
            field=models.JSONField(default=dict, help_text='Keyed by book: the number of the seal over the rows of the month that were not moved to files.'),
        ),
        migrations.AlterField(
            model_name='jobday',
            name='segments',
            field=models.IntegerField(help_text='Number of usage segments (billed intervals of leases) in this row; negative in the row of a correction.'),
        ),
        migrations.AlterField(
            model_name='jobday',
            name='transaction_id',
            field=models.BigIntegerField(help_text='ID of the ledger transaction that last changed this row: the closing of an hour, or a correction.'),
        ),
        migrations.AlterField(
            model_name='ledgeraccount',
            name='kind',
            field=models.CharField(choices=[('usage', 'GPU time used'), ('installed', 'GPU time of all installed GPUs'), ('capacity', 'GPU time provided'), ('cost', 'Cost of GPU time'), ('revenue', 'Revenue from GPU time'), ('waived', 'Taken back'), ('free', 'Free'), ('others', 'Used outside Fairlot'), ('drained', 'Drained'), ('down', 'Down'), ('classes', 'Price differences of idle, preemptible and borrowed time'), ('rounding', 'Rounding'), ('trade', 'Entitlement traded')], max_length=10),
        ),
        migrations.AlterField(
            model_name='ledgerseal',
            name='month',
            field=models.DateField(help_text='Archived month: the seal covers rows of this month that were not moved to files. Null: it covers new rows.', null=True),
        ),
        migrations.AlterField(
            model_name='ledgertransaction',
            name='kind',
            field=models.CharField(choices=[('usage', 'Usage'), ('trade', 'Trade'), ('correction', 'Correction'), ('closing', 'Closing'), ('pricing', 'Price differences of idle, preemptible and borrowed time')], max_length=10),
        ),
        migrations.AlterField(
            model_name='request',
            name='overtaken_at',
            field=models.DateTimeField(help_text='Time at which somebody changed the granted value by hand, without a request.', null=True),
        ),
        migrations.AlterField(
            model_name='request',
            name='told_of_end',
            field=models.DateTimeField(help_text='Time at which the grant ends, according to the last reminder mail.', null=True),
        ),
        migrations.AlterField(
            model_name='usageday',
            name='segments',
            field=models.IntegerField(help_text='Number of usage segments (billed intervals of leases) in this row; negative in the row of a correction.'),
        ),
        migrations.AlterField(
            model_name='usageday',
            name='transaction_id',
            field=models.BigIntegerField(help_text='ID of the ledger transaction that last changed this row: the closing of an hour, or a correction.'),
        ),
        migrations.AlterField(
            model_name='usagehour',
            name='segments',
            field=models.IntegerField(help_text='Number of usage segments (billed intervals of leases) in this row; negative in the row of a correction.'),
        ),
        migrations.AlterField(
            model_name='usagehour',
            name='transaction_id',
            field=models.BigIntegerField(help_text='ID of the ledger transaction that last changed this row: the closing of an hour, or a correction.'),
        ),
        migrations.AlterField(
            model_name='user',
            name='theme',
            field=models.CharField(choices=[('system', 'Same as your device'), ('light', 'Light'), ('dark', 'Dark')], default='system', max_length=6),
        ),
        migrations.AlterField(
            model_name='webhookcall',
            name='nonce',
            field=models.CharField(help_text="The budget's random value (nonce) when the call was stored; the call's signing key is derived from it.", max_length=16),
        ),
    ]
