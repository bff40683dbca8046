"""Slots for database connections, shared by all web processes of one Fairlot.

Each connection of a web process holds a PostgreSQL lock from beginning to end. There are as many locks as the server
accepts connections, minus those reserved for workers, the watcher and commands.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

LOCK = 7_110  # first key of an advisory lock; others are in scheduling/core/locks.py and accounting/core/locks.py
TAKE = """
SELECT place
  FROM generate_series(1, greatest(1, current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int
       - current_setting('reserved_connections')::int - %s)) AS place
 WHERE pg_try_advisory_lock(%s, place)
 LIMIT 1
"""


def share_places() -> None:
    """Makes each future connection of this process take a slot."""
    connection_created.connect(take_place, dispatch_uid="web places")


def take_place(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Takes a slot, or closes the connection and raises OperationalError if none is left."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [settings.FAIRLOT_RESERVED_DATABASE_CONNECTIONS, LOCK])
        found = cursor.fetchone()
    if found is None:
        connection.close()
        raise OperationalError("web servers have all the connections to the database that they may have")
