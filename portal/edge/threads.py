"""Threads for database work, each with one connection that it keeps between requests."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

from django.db import close_old_connections, connections

from portal.edge.clients import Client
from portal.edge.turns import Turns

# An unused connection is closed after this time, so that idle web processes hold none.
IDLE_SECONDS = 60.0
# How long a call of an answer that has begun waits for a thread.
BORROW_SECONDS = 30.0


class Threads:
    """A fixed number of single threads, lent to one request at a time; the last one used is lent first.

    No login gets more than half of them at once and, if requests `may_be_slow`, no address gets all, so that clients
    leave threads to each other. Belongs to one event loop; everything except the work itself is called there.
    """

    def __init__(self, count: int, name: str, *, may_be_slow: bool = False) -> None:
        self.count, self.name = count, name
        self._made: set[ThreadPoolExecutor] = set()
        self._idle: list[
            tuple[float, ThreadPoolExecutor]
        ] = []  # with the time since when it is idle, in that order
        self._turns = Turns(count, may_be_slow=may_be_slow)
        self._sweep: asyncio.TimerHandle | None = None
        _all.add(self)

    @property
    def free(self) -> int:
        return self.count - len(self._made) + len(self._idle)

    def has_one_for(self, client: Client) -> bool:
        """Returns whether `take` would return at once."""
        return self._turns.may_begin(client)

    async def take(self, client: Client, within: float) -> ThreadPoolExecutor:
        """Lends a thread when it is the client's turn. Raises Full after `within` seconds."""
        await self._turns.begin(client, within)
        if self._idle:
            return self._idle.pop()[1]
        made = ThreadPoolExecutor(1, f"{self.name}-{len(self._made) + 1}")
        self._made.add(made)
        return made

    def give_back(
        self,
        thread: ThreadPoolExecutor,
        client: Client,
        also: Callable[[], None] | None = None,
        *,
        last: Future[Any] | None = None,
    ) -> None:
        """Takes the thread back once it has finished its work, however long that takes; then calls `also`.

        `last` is the last work that it was given; if that has ended, there is no wait.
        """
        if last is not None and last.done() and not last.cancelled():
            self._take_back(thread, client, also)
            return
        loop = asyncio.get_running_loop()

        def done(_: Future[None]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._take_back, thread, client, also)

        thread.submit(close_old_connections).add_done_callback(done)

    async def run(
        self, client: Client, work: Callable[..., Any], *args: Any, within: float = BORROW_SECONDS
    ) -> Any:
        """Calls `work` in a free thread and returns its result. Raises Full, and whatever `work` raises."""
        thread = await self.take(client, within)
        last = thread.submit(_tidily, work, *args)
        try:
            return await asyncio.wrap_future(last)
        finally:
            self.give_back(thread, client, last=last)
            del last  # an error that refers to itself would keep what the work held

    def close(self) -> None:
        """Closes the connections of all threads, and the threads, after the event loop has ended.

        A thread that was lent at that moment does not come back.
        """
        self._idle.clear()
        for thread in list(self._made):
            self._end(thread, wait=True)

    def _end(self, thread: ThreadPoolExecutor, *, wait: bool) -> None:
        thread.submit(_close_connections)
        thread.shutdown(wait=wait)
        self._made.discard(thread)

    def _take_back(self, thread: ThreadPoolExecutor, client: Client, also: Callable[[], None] | None) -> None:
        self._idle.append((time.monotonic(), thread))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)
        self._turns.end(client)
        if also is not None:
            also()

    def _close_idle(self) -> None:
        """Closes connections that were unused for a while, the longest idle first."""
        self._sweep = None
        now = time.monotonic()
        while self._idle and now - self._idle[0][0] >= IDLE_SECONDS:
            self._end(self._idle.pop(0)[1], wait=False)
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)


class Lease(Executor):
    """The thread of one request, for asgiref's ThreadSensitiveContext.

    Until `release`, all synchronous work of the request runs in its thread. Afterwards each call runs in any free
    thread and, after `finish`, when only files remain to be closed, in one without a connection. `also` is called
    when the thread has come back.
    """

    def __init__(
        self,
        threads: Threads,
        thread: ThreadPoolExecutor,
        client: Client,
        also: Callable[[], None] | None = None,
    ) -> None:
        self._threads, self._client, self._also = threads, client, also
        self._thread: ThreadPoolExecutor | None = thread
        self._finished = False
        self._last: Future[Any] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._thread is not None:
            self._last = self._thread.submit(_tidily, fn, *args, **kwargs)
            return self._last
        if self._finished:
            return _closing.submit(fn, *args, **kwargs)
        outcome: Future[Any] = Future()
        call = asyncio.get_running_loop().create_task(
            self._borrow(outcome, functools.partial(fn, *args, **kwargs))
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        # A call whose result nobody awaits any more stops waiting for a thread.
        outcome.add_done_callback(lambda done: done.cancelled() and call.cancel())
        return outcome

    async def _borrow(self, outcome: Future[Any], work: Callable[[], Any]) -> None:
        try:
            result = await self._threads.run(self._client, work)
        except BaseException as error:
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if outcome.set_running_or_notify_cancel():
                outcome.set_result(result)
        finally:
            del outcome  # an error that refers to itself would keep what the work held

    def release(self) -> None:
        """Gives the thread back; repeating it changes nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._threads.give_back(thread, self._client, self._also, last=self._last)

    def finish(self) -> None:
        """Like `release`, if nothing that follows needs the database."""
        self._finished = True
        self.release()


_all: WeakSet[Threads] = WeakSet()
_closing = ThreadPoolExecutor(1, "closing")


def close_all() -> None:
    """Closes what the threads of ended event loops still hold."""
    for threads in list(_all):
        threads.close()


def _tidily(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs the work, and closes its connection if that became unusable."""
    try:
        return work(*args, **kwargs)
    finally:
        close_old_connections()


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
