"""Counts the requests to services that this web process relays, and stores the counts every few seconds.

Counting takes a few microseconds and never waits. If the process stops, what it has counted since it last stored its
counts is lost: the requests of at most FLUSH_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from accounting.core.clock import now_from_database
from scheduling.backends.summaries import WINDOW
from scheduling.services.traffic import Outcome, Traffic
from scheduling.services.traffic_samples import Report, note_traffic

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 5.0
# Windows that a process keeps while the database does not answer; older ones are given up.
MOST_WINDOWS = 60


class Tally:
    """The counts of one process, by service and window. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.source = uuid4().hex
        self._lock = threading.Lock()
        self._sums: dict[tuple[int, int], Traffic] = {}
        self._sent: dict[tuple[int, int], int] = {}  # requests of each sum that the database has
        self._latest = 0
        # The time of the database minus that of this machine; None before it is known.
        self._offset: float | None = None

    def note(self, service_id: int, outcome: Outcome, seconds: float | None) -> None:
        """Counts a request. `seconds` is the time until its answer began; None if no replica answered."""
        with self._lock:
            # Windows never go back, because those before the present one may be forgotten.
            number = int((time.time() + (self._offset or 0.0)) // WINDOW)
            if number > self._latest:
                self._latest = number
                self._forget()
            self._sums.setdefault((service_id, self._latest), Traffic()).note(outcome, seconds)

    def flush(self) -> None:
        """Stores all counts that the database does not have. Raises the database's error if it does not answer; the
        next call then tries again."""
        self._learn(now_from_database().timestamp() - time.time())
        with self._lock:
            reports = [
                Report(service_id, number, Traffic.restored(traffic.stored))
                for (service_id, number), traffic in self._sums.items()
                if traffic.requests > self._sent.get((service_id, number), 0)
            ]
        if reports:
            note_traffic(source=self.source, reports=reports)
        with self._lock:
            for report in reports:
                self._sent[report.service_id, report.number] = report.traffic.requests
            self._forget()

    def has_unsent(self) -> bool:
        with self._lock:
            return any(sum_.requests > self._sent.get(key, 0) for key, sum_ in self._sums.items())

    def _learn(self, offset: float) -> None:
        """Follows the clock of the database. Before the first report, windows that were counted by this machine's clock
        move to where the database has them."""
        with self._lock:
            if self._offset is None:
                shift = round(offset / WINDOW)
                self._sums = {(key, number + shift): one for (key, number), one in self._sums.items()}
                self._latest += shift
            self._offset = offset

    def _forget(self) -> None:
        """Forgets windows that are over and stored, and the oldest ones if they are too many. Runs under the lock."""
        for key in list(self._sums):
            if key[1] < self._latest and self._sums[key].requests == self._sent.get(key):
                del self._sums[key]
            elif key[1] <= self._latest - MOST_WINDOWS:
                logger.warning(
                    "%s requests to service %s were not counted", self._sums.pop(key).requests, key[0]
                )
        self._sent = {key: sent for key, sent in self._sent.items() if key in self._sums}


tally = Tally()
# The flush that each event loop has planned or is running.
_planned: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


def count(
    service_id: int,
    outcome: Outcome,
    seconds: float | None,
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> None:
    """Counts a request of the running event loop, and plans that the counts are stored.

    `in_thread` calls a function in a thread that may use the database.
    """
    tally.note(service_id, outcome, seconds)
    loop = asyncio.get_running_loop()
    if loop not in _planned or _planned[loop].done():
        _planned[loop] = loop.create_task(_flush_until_stored(in_thread))


async def _flush_until_stored(in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    while tally.has_unsent():
        await asyncio.sleep(FLUSH_SECONDS)
        try:
            await in_thread(tally.flush)
        except Exception as error:  # the counts are kept, and stored FLUSH_SECONDS later
            logger.warning("the requests to services could not be stored yet: %r", error)
