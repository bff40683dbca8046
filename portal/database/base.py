"""A PostgreSQL backend that checks without a query whether a connection still works.

A query would delay every request until its answer arrives.
"""

from __future__ import annotations

import select

from django.db.backends.postgresql import base
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INTRANS,
)

SERVING = {TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS}


class DatabaseWrapper(base.DatabaseWrapper):
    """A database connection whose method `is_usable` sends no query, but only looks at the socket.

    If the server has ended the connection, the socket is closed or has unread data. If the server has vanished, the
    socket does not show it. The next statement then fails, and the connection is replaced before the next request.
    """

    def is_usable(self) -> bool:
        if self.connection is None or self.connection.get_transaction_status() not in SERVING:
            return False
        unread = select.poll()
        unread.register(self.connection.fileno(), select.POLLIN)
        return not unread.poll(0)
