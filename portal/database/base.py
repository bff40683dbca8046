"""Checks whether a database connection still works without a query, because each request would wait for the query's
answer."""

from __future__ import annotations

import select

from django.db.backends.postgresql import base
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INTRANS,
)

SERVING = {TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS}


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection whose check only looks at its socket: if the server stops, restarts or ends the connection, the
    socket has unread data or is closed.

    A server that vanishes without closing the socket is not noticed. Then the request's first statement fails, and
    the connection is replaced before the next request.
    """

    def is_usable(self) -> bool:
        if self.connection is None or self.connection.get_transaction_status() not in SERVING:
            return False
        unread = select.poll()
        unread.register(self.connection.fileno(), select.POLLIN)
        return not unread.poll(0)
