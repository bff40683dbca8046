"""Slots for database connections, which all web processes of a Fairlot installation share.

Each connection of a web process holds a slot, a PostgreSQL advisory lock, as long as it is open. There are as many
slots as the server accepts connections, minus the connections reserved for workers, the watcher and commands.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

# first key of the advisory locks; other first keys are in scheduling/core/locks.py and accounting/core/locks.py
LOCK = 7_110
TAKE = """
SELECT place
  FROM generate_series(1, greatest(1, current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int
       - current_setting('reserved_connections')::int - %s)) AS place
 WHERE pg_try_advisory_lock(%s, place)
 LIMIT 1
"""


def share_places() -> None:
    """Makes each new database connection of this process take a slot."""
    connection_created.connect(take_place, dispatch_uid="web places")


def take_place(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Takes a slot for a new connection. Closes the connection and raises OperationalError if no slot is free."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [settings.FAIRLOT_RESERVED_DATABASE_CONNECTIONS, LOCK])
        found = cursor.fetchone()
    if found is None:
        connection.close()
        raise OperationalError("web servers have all the connections to the database that they may have")
