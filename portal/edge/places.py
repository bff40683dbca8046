"""Limits the database connections of all web processes of a Fairlot installation together, by slots.

Each open connection of a web process holds one slot, which is a PostgreSQL advisory lock. The number of slots is the
number of connections that the server accepts, minus those reserved for workers, the watcher and commands.
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


def limit_connections() -> None:
    """Makes every new database connection of this process take a slot of the shared limit."""
    connection_created.connect(take_slot, dispatch_uid="web places")


def take_slot(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Takes one of the shared slots for a new database connection.

    If no slot is free, closes the connection and raises OperationalError.
    """
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [settings.FAIRLOT_RESERVED_DATABASE_CONNECTIONS, LOCK])
        found = cursor.fetchone()
    if found is None:
        connection.close()
        raise OperationalError(
            "The web servers already use all database connections that are allowed for them."
        )
