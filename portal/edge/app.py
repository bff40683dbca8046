"""The ASGI application around Django, which limits the body, the thread use and the waiting time of each request."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from asgiref.sync import ThreadSensitiveContext
from django.conf import settings
from django.urls import Resolver404, resolve, reverse

from portal.edge.answers import Answer, Refused
from portal.edge.bodies import Bodies, Gone, Message, Receive, Scope
from portal.edge.clients import Client, client_of
from portal.edge.health import Health
from portal.edge.questions import Probe
from portal.edge.threads import ThreadLoan, Threads
from portal.edge.turns import Full, Turns

logger = logging.getLogger(__name__)
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# How many seconds a request waits for a thread. Streams wait longer, because users do not look at a stream yet.
WAIT_SECONDS = 5.0
STREAM_WAIT_SECONDS = 60.0
# Paths that portal.live.streams answers. A request header could not tell, because any client may send it to any page.
STREAMS = re.compile("/live|(?:/api/v1)?/jobs/[0-9]+/log/stream|/api/v1/notifications/stream")
# If a request is not answered after LOOK_AFTER_SECONDS, a probe checks whether the database answers within
# LOOK_SECONDS.
LOOK_AFTER_SECONDS = 4.0
LOOK_SECONDS = 4.0
# The number of threads for static files, which need no database.
STATIC_THREADS = 2
HASHING = {
    "login",
    "password_change",
}  # names of the URLs whose views hash a password

BUSY = Answer(503, "Fairlot is overloaded. Try again in a moment.", retry_after=5)
SILENT = Answer(503, "Fairlot's database does not answer. Try again in a moment.", retry_after=5)
HASHING_BUSY = Answer(503, "Too many people are signing in right now. Try again in a moment.", retry_after=5)


class Edge:
    """The ASGI layer in front of Django, with the state that all requests of one event loop share.

    A web process has one event loop, and so one `Edge`.
    """

    def __init__(self, portal: App) -> None:
        self.portal = portal
        self.probe = Probe()
        self.health = Health(self.probe)
        self.bodies = Bodies()
        self.pages = Threads(pages_at_once(), "pages", may_be_slow=True)
        self.streams = Threads(streams_at_once(), "streams")
        self.static = Threads(STATIC_THREADS, "static")
        # A login may be slow, because it waits for a thread while it has the turn.
        self.hashing = Turns(settings.FAIRLOT_PASSWORDS_AT_ONCE, may_be_slow=True)
        self._left_behind: set[asyncio.Task[None]] = set()
        self._health_path = reverse("healthz")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._health_path:
            await self.health.answer(scope, send)
            return
        arrived, client = time.monotonic(), client_of(scope)
        try:
            async with self.bodies.read(scope, receive, client) as body:
                whole = receive if body is None else _again(body, receive)
                await self._pass_on(scope, whole, send, client, arrived)
        except Refused as refused:
            await refused.answer.send(scope, send)
        except Gone:
            logger.debug("a client left before its request was complete")

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, client: Client, arrived: float
    ) -> None:
        """Lends the request a thread, runs Django, and waits until Django has answered the request.

        `arrived` is the time at which the request arrived, by the monotonic clock. Raises Refused if no thread becomes
        free in time, or if the database does not answer.
        """
        threads = self._threads_for(scope["path"])
        if self.probe.is_silent and threads is not self.static and not await self.probe.responds(within=1.0):
            raise Refused(SILENT)
        loan = await self._lend_thread(threads, scope, client)
        exchange = _Exchange(send, loan)
        task = asyncio.create_task(self._run(loan, scope, receive, exchange))
        task.add_done_callback(lambda _: loan.finish())
        try:
            await self._until_answered(task, exchange, arrived)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _threads_for(self, path: str) -> Threads:
        if path.startswith(settings.STATIC_URL):
            return self.static
        return self.streams if STREAMS.fullmatch(path) else self.pages

    async def _lend_thread(self, threads: Threads, scope: Scope, client: Client) -> ThreadLoan:
        """Waits for a free thread, and lends it to the request. Returns the loan.

        A request that hashes a password, such as a login, first waits for a turn in `hashing`, because only a few of
        these requests run at the same time. Raises Refused if no turn or no thread becomes free in time.
        """
        if scope["method"] != "POST" or _name_of(scope["path"]) not in HASHING:
            return ThreadLoan(threads, await self._take(threads, client), client)
        try:
            await self.hashing.begin(client, WAIT_SECONDS)
        except Full:
            raise Refused(HASHING_BUSY) from None
        try:
            thread = await self._take(threads, client)
        except BaseException:
            self.hashing.end(client)
            raise
        # The turn ends with the loan, even if the client disconnects earlier, because the hashing continues.
        return ThreadLoan(threads, thread, client, also=lambda: self.hashing.end(client))

    async def _take(self, threads: Threads, client: Client) -> ThreadPoolExecutor:
        """Waits for a free thread and returns it.

        Raises Refused if no thread becomes free in time, or if the database stops answering during the wait.
        """
        within = STREAM_WAIT_SECONDS if threads is self.streams else WAIT_SECONDS
        if threads.has_one_for(client):
            return await threads.take(client, within)
        taking = asyncio.ensure_future(threads.take(client, within))
        try:
            while not (await asyncio.wait([taking], timeout=LOOK_AFTER_SECONDS))[0]:
                if not await self.probe.responds(LOOK_SECONDS) and not taking.done():
                    raise Refused(SILENT)
            return taking.result()
        except Full:
            raise Refused(BUSY) from None
        except BaseException:
            if not taking.cancel() and not taking.exception():
                threads.give_back(
                    taking.result(), client
                )  # the thread was lent at the moment of cancellation
            raise

    async def _run(self, loan: ThreadLoan, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        async with ThreadSensitiveContext(executor=loan):
            await self.portal(scope, receive, exchange.send)

    async def _until_answered(self, task: asyncio.Task[None], exchange: _Exchange, arrived: float) -> None:
        """Waits until `task`, which runs Django, has ended. Until the response begins, regularly checks whether the
        database answers.

        `arrived` is the time at which the request arrived, by the monotonic clock. Raises Refused if the database does
        not answer a check and the response has not begun.
        """
        patience = max(1.0, arrived + LOOK_AFTER_SECONDS - time.monotonic())
        while not (await asyncio.wait([task], timeout=patience))[0] and not exchange.begun:
            if not await self.probe.responds(within=LOOK_SECONDS) and not exchange.begun and not task.done():
                # Django still runs in its thread. The thread is not lent again before this work has ended.
                exchange.abandoned = True
                self._left_behind.add(task)
                task.add_done_callback(self._forget)
                raise Refused(SILENT)
            patience = LOOK_AFTER_SECONDS
        await task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("a request that was given up ended with %r", error)


class _Exchange:
    """Sends the response to one request to the client, and gives the request's thread back when the response begins."""

    def __init__(self, send: Send, loan: ThreadLoan) -> None:
        self._send, self._loan = send, loan
        self.begun = self.abandoned = False

    async def send(self, message: Message) -> None:
        if self.abandoned:
            return  # the client already got a 503 answer
        if message["type"] == "http.response.start":
            self.begun = True
            self._loan.release()
        elif not message.get("more_body", False):
            self._loan.finish()
        await self._send(message)


def _again(body: bytes, receive: Receive) -> Receive:
    """Returns an ASGI `receive` for a body that was already read. Its first call returns the body; later calls go to
    `receive`."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _name_of(path: str) -> str:
    try:
        return resolve(path).url_name or ""
    except Resolver404:
        return ""


def pages_at_once() -> int:
    """Returns how many requests for pages and for the API may use the database at the same time in one process.

    The other database connections of the process are for streams, for requests to sessions and services, and for the
    check whether the database answers.
    """
    return int(settings.FAIRLOT_WEB_DATABASE_CONNECTIONS) - streams_at_once() - visits_at_once() - 1


def streams_at_once() -> int:
    """Returns how many streams of one process may use the database at the same time.

    A stream uses the database when it starts, and when it checks whether its reader may still read it.
    """
    return max(1, int(settings.FAIRLOT_WEB_DATABASE_CONNECTIONS) // 6)


def visits_at_once() -> int:
    return max(1, int(settings.FAIRLOT_WEB_DATABASE_CONNECTIONS) // 6)


def with_edge(portal: App) -> App:
    """Wraps the ASGI app `portal` in this layer, which applies to HTTP requests. Other protocols pass through
    unchanged."""
    edges: WeakKeyDictionary[asyncio.AbstractEventLoop, Edge] = WeakKeyDictionary()

    async def edge(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await portal(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        if loop not in edges:
            edges[loop] = Edge(portal)
        await edges[loop].serve(scope, receive, send)

    return edge
