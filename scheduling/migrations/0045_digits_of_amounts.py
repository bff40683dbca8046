import unicodedata

from django.db import migrations
from django.db.models import Q

FIELDS = ("memory", "shm")


def write_in_ascii(apps, schema_editor):
    """Amounts such as ٣Gi were accepted once; what reads them takes the digits 0 to 9 alone."""
    for name in ("Job", "Schedule", "ServiceRevision"):
        rows = apps.get_model("scheduling", name).objects.using(schema_editor.connection.alias)
        strange = [Q(**{f"spec__{field}__regex": "[^ -~]"}) for field in FIELDS]
        for row in rows.filter(strange[0] | strange[1]).only("pk", "spec").iterator():
            for field in FIELDS:
                if isinstance(row.spec.get(field), str):
                    row.spec[field] = "".join(
                        str(unicodedata.decimal(char, char)) for char in row.spec[field]
                    )
            rows.filter(pk=row.pk).update(spec=row.spec)


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0044_deadlines_of_drains'),
    ]

    operations = [
        migrations.RunPython(write_in_ascii, migrations.RunPython.noop),
    ]
