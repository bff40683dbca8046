"""Runs checks that may take long. Each check has a separate thread, and all callers of a check share its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg2
from django.db import connection

T = TypeVar("T")
CONNECT_SECONDS = 3


class SharedCheck(Generic[T]):
    """A check that calls `work` in a separate thread. Its result is reused for `fresh` seconds.

    One instance belongs to one event loop.
    """

    def __init__(self, work: Callable[[], T], *, fresh: float) -> None:
        self._work, self._fresh = work, fresh
        self._thread = ThreadPoolExecutor(1, "question")
        self._asking: asyncio.Future[T] | None = None
        self._asked_at = self._answered_at = float("-inf")
        self.last: T | None = None  # the latest answer; None if `work` raised an error

    async def ask(self, within: float) -> T | None:
        """Returns the result of `work`; None if it is not available within `within` seconds or `work` raised an
        error."""
        if self._asking is None and time.monotonic() - self._answered_at > self._fresh:
            self._asked_at = time.monotonic()
            self._asking = asyncio.get_running_loop().run_in_executor(self._thread, self._work)
            self._asking.add_done_callback(self._note)
        if self._asking is not None and (left := self._asked_at + within - time.monotonic()) > 0:
            await asyncio.wait([self._asking], timeout=left)
        return self.last if self._asking is None else None

    def close(self) -> None:
        """Shuts down the thread, without waiting for a running call of `work`. `ask` must not be called afterwards."""
        self._thread.shutdown(wait=False)

    def running_for(self) -> float:
        """Returns for how many seconds `work` has been running; 0 if it is not running."""
        return time.monotonic() - self._asked_at if self._asking is not None else 0.0

    def _note(self, asking: asyncio.Future[T]) -> None:
        self._asking = None
        self._answered_at = time.monotonic()
        self.last = None if asking.cancelled() or asking.exception() else asking.result()


@dataclass(frozen=True)
class Database:
    """The result of a database check with a new connection."""

    responds: bool  # the database answers, even if it refuses the connection
    works: bool
    folder: str = ""  # the data folder of the database, if the user may read its name


class Probe:
    """Checks whether the database answers, with a separate connection and thread that no request uses."""

    def __init__(self) -> None:
        self.question = SharedCheck(ask_database, fresh=1.0)

    async def responds(self, within: float) -> bool:
        """Returns whether the database answers within `within` seconds. A refused connection also counts as an
        answer."""
        found = await self.question.ask(within)
        return found is not None and found.responds

    async def works(self, within: float) -> bool:
        """Returns whether a new database connection can be opened and can run a query within `within` seconds."""
        found = await self.question.ask(within)
        return found is not None and found.works

    @property
    def is_silent(self) -> bool:
        """Returns whether the database did not answer the latest check, or the running check has taken more than
        CONNECT_SECONDS + 1 seconds."""
        last = self.question.last
        return self.question.running_for() > CONNECT_SECONDS + 1 or (last is not None and not last.responds)


def ask_database() -> Database:
    """Opens a new database connection, with a time limit, and runs a query.

    Returns a `Database`, which says whether the database answered, whether the query succeeded, and, if known, the path
    of the database's data folder.
    """
    try:
        link = psycopg2.connect(**connection.get_connection_params() | {"connect_timeout": CONNECT_SECONDS})
    except psycopg2.Error as error:
        # A refusal, such as too many connections, counts as an answer: requests may use connections that are already
        # open.
        return Database(responds="FATAL:" in str(error), works=False)
    try:
        with link.cursor() as cursor:
            cursor.execute(
                "SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'usage')"
                " THEN current_setting('data_directory') ELSE '' END"
            )
            return Database(responds=True, works=True, folder=cursor.fetchone()[0])
    except psycopg2.Error:
        return Database(responds=False, works=False)
    finally:
        link.close()
