"""Messages on their way to Redis, sent by one thread of the process: nobody waits for Redis.

All of them may be lost: beat and the pages' own polling make up for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)

# More than that wait only while Redis does not answer, and by then beat has done the same.
MOST_WAITING = 1000
# How long a process that ends waits for its last messages.
LAST_WORDS_SECONDS = 1.0


class Outgoing:
    """A queue in front of one thread, which starts with the first message; the same message waits once."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew, as after a fork, which no thread survives."""
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._sending = False
        self._dropped = 0

    def put(self, key: Hashable, send: Callable[[], None]) -> None:
        """Has `send` called soon, in another thread; `key` says what it sends."""
        with self._changed:
            if key not in self._waiting and len(self._waiting) >= MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
                self._dropped += 1
            self._waiting.setdefault(key, send)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outgoing", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, within: float) -> bool:
        """Waits until all is sent; returns whether that took no longer than `within` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, within)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                key = next(iter(self._waiting))
                send, self._sending = self._waiting.pop(key), True
                dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.warning("%s messages were dropped, as Redis takes none", dropped)
            try:
                send()
            except Exception:  # the next message may be one that can be sent
                logger.exception("a message was not sent: %r", key)
            with self._changed:
                self._sending = False
                self._changed.notify_all()


outgoing = Outgoing()
os.register_at_fork(after_in_child=outgoing.forget)
atexit.register(outgoing.flush, LAST_WORDS_SECONDS)
