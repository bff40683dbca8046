"""Changes of nodes are covered by the ledger's hash chain: what there is already is sealed and named here, once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.db import migrations

heads = import_module("accounting.migrations.0027_heads")
# As scheduling/leases/verification.py had them when this was written.
BOOK = -9
COLUMNS = f"cluster_id, node_id, name, generation_id, gpus, state, failed_gpus, others_gpus, {heads.AT}"


def seal_changes(apps: Any, schema_editor: Any) -> None:
    heads.seal_journal(schema_editor.connection, BOOK, "scheduling_nodechange", COLUMNS)
    heads.name_last_seals(schema_editor.connection, f"book = {BOOK}")


class Migration(migrations.Migration):

    dependencies = [
        ('accounting', '0027_heads'),
        ('scheduling', '0045_digits_of_amounts'),
    ]

    operations = [
        migrations.RunPython(seal_changes, migrations.RunPython.noop),
        migrations.RunSQL(heads.CHECK_NOW, migrations.RunSQL.noop),
    ]
