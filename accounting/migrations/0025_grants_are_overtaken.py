"""Grants know that somebody has changed since what they set, and of which end people were told in time."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0020_seals_of_sums'),
    ]

    operations = [
        migrations.AddField(
            model_name='request',
            name='told_of_end',
            field=models.DateTimeField(help_text='The end of which its people were told in time.', null=True),
        ),
        migrations.AddField(
            model_name='request',
            name='overtaken_at',
            field=models.DateTimeField(help_text='When somebody changed by hand what it set.', null=True),
        ),
    ]
