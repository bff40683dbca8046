"""Since this is applied, costs are rounded to six decimals; `verify_ledger` finds four right for time before that."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("accounting", "0027_heads")]

    operations = []
