from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("accounting", "0035_plain_help_texts")]

    operations = [
        migrations.RenameModel("Letter", "Mail"),
        migrations.RenameModel("LetterAttachment", "MailAttachment"),
        migrations.RenameField("MailAttachment", "letter", "mail"),
        migrations.RenameIndex("Mail", new_name="mail_due", old_name="letter_due"),
    ]
