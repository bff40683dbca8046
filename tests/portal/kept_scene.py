"""Creates the test objects of scene.py once and restores them for each test, which takes a tenth of the time."""

from __future__ import annotations

import copy
import time

from django.db import connection

from accounting.models import User
from tests.kept_rows import inserts_of_rows
from tests.ledger_guard import CHANGES
from tests.portal.scene import Scene, scene

FRESH_FOR = 30.0  # seconds; later, times of the scene such as "five minutes ago" would be wrong


class KeptScene:
    """The objects of the scene, and an SQL script that inserts their rows with the same primary keys."""

    def __init__(self) -> None:
        self.script = ""
        self.made: Scene | None = None
        self.made_at = 0.0

    def put_back(self) -> Scene:
        """Inserts the scene into the database and returns it.

        Creates a new scene if the kept one is older than FRESH_FOR, or if the database already contains users.
        """
        if User.objects.exists():
            # A script made now would also contain the rows of other fixtures.
            return scene()
        if self.made is None or time.monotonic() - self.made_at > FRESH_FOR:
            self.made, self.made_at = scene(), time.monotonic()
            self.script = rows_as_script()
        else:
            with connection.cursor() as cursor:
                cursor.execute(self.script)  # without parameters, a single call can run several statements
        return copy.deepcopy(self.made)


def rows_as_script() -> str:
    inserts = inserts_of_rows()
    # Ledger entries come last, because they refer to other rows. Triggers write the tables of changes.
    entries = inserts.pop("accounting_ledgerentry", "")
    return ";".join([*(insert for table, insert in inserts.items() if table not in CHANGES), entries])
