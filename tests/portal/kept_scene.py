"""Creates the test objects of scene.py once and restores them for each test, which takes a tenth of the time."""

from __future__ import annotations

import copy
import time

from django.apps import apps
from django.db import connection

from accounting.models import User
from tests.ledger_guard import CHANGES
from tests.portal.scene import Scene, scene

ROOMS = ("accounting", "scheduling", "portal")
FRESH_FOR = 30.0  # seconds; later, times of the scene such as "five minutes ago" would be wrong


class KeptScene:
    """The objects of the scene, and an SQL script that inserts their rows with the same primary keys."""

    def __init__(self) -> None:
        self.script = ""
        self.made: Scene | None = None
        self.made_at = 0.0

    def put_back(self) -> Scene:
        """Inserts the scene into the database and returns it.

        All triggers and constraints check the rows again. If the database already contains users of other fixtures,
        creates a new scene and does not keep it, because the script would contain the other rows, too.
        """
        if User.objects.exists():
            return scene()
        if self.made is None or time.monotonic() - self.made_at > FRESH_FOR:
            self.made, self.made_at = scene(), time.monotonic()
            self.script = rows_as_script()
        else:
            with connection.cursor() as cursor:
                cursor.execute(self.script)  # without parameters, a single call can run several statements
        return copy.deepcopy(self.made)


def rows_as_script() -> str:
    # Leaves out generated columns, which PostgreSQL fills.
    columns = {
        model._meta.db_table: ", ".join(
            f'"{one.column}"' for one in model._meta.concrete_fields if not one.generated
        )
        for room in ROOMS
        for model in apps.get_app_config(room).get_models(include_auto_created=True)
    }
    tables = list(columns)
    # Ledger entries come last, because they refer to other rows. Triggers write the tables of changes.
    for told in CHANGES:
        tables.remove(told)
    tables.append(tables.pop(tables.index("accounting_ledgerentry")))
    with connection.cursor() as cursor:
        statements = []
        for table in tables:
            cursor.execute(f"SELECT json_agg(held)::text FROM {table} held")  # noqa: S608 - our own names
            (rows,) = cursor.fetchone()
            if rows is not None:
                read = f"SELECT {columns[table]} FROM json_populate_recordset(null::{table}, %s)"  # noqa: S608
                same = f"INSERT INTO {table} ({columns[table]}) {read}"
                statements.append(cursor.mogrify(same, [rows]).decode())
    return ";\n".join(statements)
