"""Whether a connection still serves, seen without a question to the server: each request would wait for its answer."""

from __future__ import annotations

import select

from django.db.backends.postgresql import base
from psycopg2.extensions import (  # type: ignore[import-untyped]
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INTRANS,
)

SERVING = {TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS}


class DatabaseWrapper(base.DatabaseWrapper):
    """A server that stops, restarts or ends a connection says so or closes it; either can be read at the socket.

    One that is gone without a word is not noticed: the first statement fails then, as a question would, and the
    connection is replaced before the next request.
    """

    def is_usable(self) -> bool:
        if self.connection is None or self.connection.get_transaction_status() not in SERVING:
            return False
        unread = select.poll()
        unread.register(self.connection.fileno(), select.POLLIN)
        return not unread.poll(0)
