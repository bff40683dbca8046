"""Sends messages to Redis from one thread per process, so that no caller has to wait for Redis.

Messages may be lost. Celery beat requests the same work again, and pages poll for changes.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)

# So many messages wait only if Redis does not answer; beat has then asked for the same work already.
MOST_WAITING = 1000
# How long an ending process waits until its last messages are sent.
LAST_WORDS_SECONDS = 1.0


class Outgoing:
    """A queue of messages that one thread sends. The thread starts with the first message.

    A message is not queued again while an equal message waits in the queue.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Empties the queue. Called in a new process after a fork, because the sending thread does not survive a
        fork."""
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._sending = False
        self._dropped = 0

    def put(self, key: Hashable, send: Callable[[], None]) -> None:
        """Queues `send`, a function that sends one message; the thread will call it. Does nothing if a message with the
        same `key` is already waiting.

        Drops the oldest message if MOST_WAITING messages are waiting.
        """
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
        """Waits until all messages are sent. Returns False if that takes more than `within` seconds, otherwise True."""
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
            except Exception:  # one failed message must not end the thread
                logger.exception("a message was not sent: %r", key)
            with self._changed:
                self._sending = False
                self._changed.notify_all()


outgoing = Outgoing()
os.register_at_fork(after_in_child=outgoing.forget)
atexit.register(outgoing.flush, LAST_WORDS_SECONDS)
