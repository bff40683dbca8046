"""Checks whether a connection still works without a query, for whose answer each request would wait."""

from __future__ import annotations

import select

from django.db.backends.postgresql import base
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INTRANS,
)

SERVING = {TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS}


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that reads its socket: a server that stops, restarts or ends a connection says so or closes it.

    A server that vanishes silently is not noticed: the first statement fails then, as a check would, and the
    connection is replaced before the next request.
    """

    def is_usable(self) -> bool:
        if self.connection is None or self.connection.get_transaction_status() not in SERVING:
            return False
        unread = select.poll()
        unread.register(self.connection.fileno(), select.POLLIN)
        return not unread.poll(0)
