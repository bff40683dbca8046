"""Threads that handle requests which use the database. Each thread keeps its database connection between requests."""

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

# After this time in seconds an unused thread and its connection are closed, so that idle web processes hold no
# connection.
IDLE_SECONDS = 60.0
# How many seconds a call waits for a thread if its request has already begun to answer.
BORROW_SECONDS = 30.0


class Threads:
    """A fixed number of threads, each lent to one request at a time.

    `Turns` decides which request gets a thread. `may_be_slow` says that requests may take long; the limit for one
    address is then stricter. One instance belongs to one event loop, and only this loop calls its methods.
    """

    def __init__(self, count: int, name: str, *, may_be_slow: bool = False) -> None:
        self.count, self.name = count, name
        self._made: set[ThreadPoolExecutor] = set()
        self._idle: list[
            tuple[float, ThreadPoolExecutor]
        ] = []  # idle threads, each with the time since when it is idle, in that order
        self._turns = Turns(count, may_be_slow=may_be_slow)
        self._sweep: asyncio.TimerHandle | None = None
        _all.add(self)

    @property
    def free(self) -> int:
        return self.count - len(self._made) + len(self._idle)

    def has_one_for(self, client: Client) -> bool:
        """Returns whether `take` would return a thread without waiting."""
        return self._turns.may_begin(client)

    async def take(self, client: Client, within: float) -> ThreadPoolExecutor:
        """Waits for the client's turn, and returns a thread. Raises Full if the turn does not come within `within`
        seconds."""
        await self._turns.begin(client, within)
        if self._idle:
            # the most recently used thread
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
        """Takes a lent thread back as soon as all its work has ended, and then calls `also`. Does not wait for the
        work.

        `last` is the last work of the thread, if the caller knows it. If it has already ended, the thread is taken back
        immediately.
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
        """Calls `work` in a free thread and returns its result. Any error of `work` is raised here.

        Raises Full if no thread becomes free within `within` seconds.
        """
        thread = await self.take(client, within)
        last = thread.submit(_tidily, work, *args)
        try:
            return await asyncio.wrap_future(last)
        finally:
            self.give_back(thread, client, last=last)
            del (
                last
            )  # otherwise an error of `work` would refer to itself, and keep the objects of its frames alive

    def close(self) -> None:
        """Shuts down all threads and closes their connections. Called after the event loop has ended.

        Also shuts down threads that are still lent, because nobody gives them back any more.
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
        self._sweep = None
        now = time.monotonic()
        while self._idle and now - self._idle[0][0] >= IDLE_SECONDS:
            self._end(self._idle.pop(0)[1], wait=False)
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)


class ThreadLoan(Executor):
    """The loan of one thread to one request, as an executor for asgiref's ThreadSensitiveContext. It is not a lease of
    GPUs.

    The synchronous functions of the request run in these threads:

    - until `release`: all in the lent thread;
    - after `release`: each in any free thread;
    - after `finish`: in a thread without a database connection, because only files remain to be closed.

    `also` is called when the thread has been given back.
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
        # If nobody awaits the result any more, the call stops waiting for a thread.
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
            del (
                outcome
            )  # otherwise an error of `work` would refer to itself, and keep the objects of its frames alive

    def release(self) -> None:
        """Gives the thread back. Has no effect if the thread was already given back."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._threads.give_back(thread, self._client, self._also, last=self._last)

    def finish(self) -> None:
        """Gives the thread back, and records that no further call of the request needs the database."""
        self._finished = True
        self.release()


_all: WeakSet[Threads] = WeakSet()
_closing = ThreadPoolExecutor(1, "closing")


def close_all() -> None:
    """Shuts down all threads of this module and closes their connections. Called after their event loops have ended."""
    for threads in list(_all):
        threads.close()


def _tidily(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `work` and returns its result. Afterwards closes the thread's database connection if it has become
    unusable."""
    try:
        return work(*args, **kwargs)
    finally:
        close_old_connections()


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
