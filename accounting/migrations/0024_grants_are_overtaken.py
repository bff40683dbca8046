"""Grants know that somebody has changed since what they set, and of which end people were told in time.

More time is over with what it extended; until now it was in force for ever.
"""

from django.db import migrations, models

MORE_TIME_ENDS = """
UPDATE accounting_request more SET ended_at = extended.ended_at, ending = 'over with request ' || extended.id
  FROM accounting_request extended
 WHERE extended.id = more.extends_id AND extended.ended_at IS NOT NULL
   AND more.state = 'approved' AND more.ended_at IS NULL;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0023_what_prices_and_bills_keep'),
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
        migrations.RunSQL(MORE_TIME_ENDS, migrations.RunSQL.noop),
    ]
