"""Relays HTTP requests to the program of a session or service, and relays its responses back in chunks as they
arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NoReturn

import aiohttp
from django.conf import settings
from yarl import URL

from portal.edge.racing import first_of
from portal.response_headers import SECURITY
from portal.sessions import headers
from portal.sessions.absence import TEXT
from portal.sessions.connection import Connection
from portal.sessions.visits import Admitted
from scheduling.services.traffic import Outcome, outcome_of

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 10.0
# Seconds between two checks that the sender of a long request may still use the program.
CHECK_SECONDS = 15.0
PIECE = 64 * 1024
# The longest pause between two chunks of an upload, in seconds.
PAUSE_SECONDS = 60.0
TOO_LARGE = (
    413,
    "The upload is too large. The setting FAIRLOT_SESSIONS_BODY_LIMIT_BYTES is the largest accepted size.",
)
TOO_SLOW = (408, "The upload paused for too long.")
SILENT = (502, "The program of the session or service did not answer.")
_MOST = f"Fairlot accepts headers of at most {headers.MOST_BYTES // 1024} KiB and {headers.MOST_LINES} lines."
HEADERS_TOO_LARGE = (431, f"The headers of the request, including cookies, are too large. {_MOST}")
NOT_PASSED_ON = (
    502,
    f"The program did not answer with valid HTTP, or the headers of its answer are too large. {_MOST}",
)
# The answer after a timeout, which is typical of network policies that drop packets.
OUT_OF_REACH = (
    504,
    "Nothing answers at the address of the session or service. If this persists, a network "
    "policy may block the portal.",
)


def client() -> aiohttp.ClientSession:
    """Returns an HTTP client for one request.

    Connections are not reused, because another program may have the same address by the next request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=["User-Agent", "Accept", "Accept-Encoding", "Content-Type"],
        read_bufsize=PIECE,
        max_line_size=headers.MOST_BYTES,
        max_field_size=headers.MOST_BYTES,
        max_headers=headers.MOST_LINES,
    )


def url_of(scope: MutableMapping[str, Any], admitted: Admitted) -> URL:
    """Returns the program's URL for the request, with the request's path and query unchanged byte for byte.

    VS Code serves at the root, so its path is without the base.
    """
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
    if admitted.is_vscode:
        raw = f"/{raw.removeprefix(admitted.base)}"
    host, _, port = admitted.address.rpartition(":")
    query = scope["query_string"].decode("latin-1")
    return URL.build(
        scheme="http", host=host.strip("[]"), port=int(port), path=raw, query_string=query, encoded=True
    )


async def relay(request: Connection, admitted: Admitted, *, notes: bool) -> None:
    """Relays `request` to the program, and relays the program's response back.

    Ends when the response is complete, when the browser or the program disconnects, or when the sender may no longer
    use the program. `notes` says whether the exchange counts as use of the program, which restarts the idle timeout of
    a session.
    """
    exchange = _Exchange(request, admitted, notes=notes)
    declared = headers.values_of(request.headers, b"content-length")
    if declared and int(declared[0]) > settings.FAIRLOT_SESSIONS_BODY_LIMIT_BYTES:
        request.count(Outcome.CLIENT_ERROR)
        await say(request.send, *TOO_LARGE, [(b"connection", b"close")])
        return
    await first_of(
        exchange.run(), exchange.stopped.wait(), exchange.until_gone(), until_barred(request, admitted)
    )
    await exchange.end()


async def until_barred(request: Connection, admitted: Admitted) -> None:
    """Waits until `request` may no longer be relayed.

    Returns when the sender may not use the program any more, the session has ended, or the program has another address.
    """
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if not await request.is_still(admitted):
            return


class _Exchange:
    """A request that is relayed to a program, and the program's response to it."""

    def __init__(self, request: Connection, admitted: Admitted, *, notes: bool) -> None:
        self.request, self.admitted, self.notes = request, admitted, notes
        self.begun = self.ended = self.left = self.counted = False
        self.trouble = SILENT
        self.sent_all = asyncio.Event()
        self.stopped = asyncio.Event()  # set if the browser disconnects early or its upload is refused

    async def run(self) -> None:
        scope = self.request.scope
        token, scheme = self.admitted.token, scope.get("scheme", "http")
        has_body = any(
            headers.values_of(self.request.headers, name)
            for name in (b"content-length", b"transfer-encoding")
        )
        if not has_body:
            self.sent_all.set()
        try:
            async with (
                client() as link,
                link.request(
                    scope["method"],
                    url_of(scope, self.admitted),
                    headers=headers.to_program(
                        self.request.headers, token=token, scheme=scheme, in_cookies=self.admitted.is_vscode
                    ),
                    data=self._body() if has_body else None,
                    allow_redirects=False,
                ) as answer,
            ):
                await self._answer(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            logger.info("session %s: %r", self.admitted.session_id, error)
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                self.trouble = OUT_OF_REACH
            elif isinstance(error, aiohttp.ClientResponseError):  # the answer is not valid HTTP
                self.trouble = NOT_PASSED_ON

    async def _answer(self, answer: aiohttp.ClientResponse) -> None:
        if headers.are_too_large(answer.raw_headers):
            self.trouble = NOT_PASSED_ON
            return
        passed = headers.to_browser(answer.raw_headers, base=self.admitted.base)
        self._count(outcome_of(answer.status))
        await self.request.send({"type": "http.response.start", "status": answer.status, "headers": passed})
        self.begun = True
        async for piece in answer.content.iter_any():
            await self.request.send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._note()
        self.ended = True
        await self.request.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _body(self) -> AsyncIterator[bytes]:
        more, size = True, 0
        while more:
            message = await self._received()
            if message is None:
                await self._stop(TOO_SLOW)
            elif message["type"] == "http.disconnect":
                self.left = True
                await self._stop(SILENT)
            else:
                more, piece = message.get("more_body", False), message.get("body", b"")
                size += len(piece)
                if size > settings.FAIRLOT_SESSIONS_BODY_LIMIT_BYTES:
                    await self._stop(TOO_LARGE)
                if piece:
                    yield piece
                    await self._note()
        self.sent_all.set()

    async def _received(self) -> MutableMapping[str, Any] | None:
        """Returns the next ASGI message from the browser, or None if no message arrives within PAUSE_SECONDS."""
        try:
            async with asyncio.timeout(PAUSE_SECONDS):
                return await self.request.receive()
        except TimeoutError:
            return None

    async def _stop(self, trouble: tuple[int, str]) -> NoReturn:
        """Ends the exchange during the upload, with the error response `trouble` (HTTP status, text). Never returns:
        waits until the task is cancelled."""
        self.trouble = trouble
        self.stopped.set()
        # No exception is raised, because aiohttp would keep it in a reference cycle with the request's body.
        # The cycle would keep the browser's connection open until the next garbage collection.
        while True:  # until the task is cancelled
            await asyncio.Event().wait()

    async def _note(self) -> None:
        if self.notes:
            await self.request.noted()

    async def until_gone(self) -> None:
        """Waits until the upload is complete, and then until the browser disconnects."""
        await self.sent_all.wait()
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        self.left = True

    async def end(self) -> None:
        """Ends the exchange. Sends an error response if the program's response has not begun.

        Raises CutOff if the response has begun but is incomplete.
        """
        if not self.begun:
            self._count(self._failure())
            closes = [(b"connection", b"close")] if self.trouble in {TOO_LARGE, TOO_SLOW} else []
            await say(self.request.send, *self.trouble, closes)
        elif not self.ended:
            raise CutOff(f"the answer of session {self.admitted.session_id} was cut off")

    def _count(self, outcome: Outcome) -> None:
        """Counts the request, unless it is counted already."""
        if not self.counted:
            self.counted = True
            self.request.count(outcome)

    def _failure(self) -> Outcome:
        """Returns how a request ended that has no answer of the program."""
        if self.left:
            return Outcome.LEFT
        if self.trouble == OUT_OF_REACH:
            return Outcome.TIMED_OUT
        return Outcome.CLIENT_ERROR if self.trouble in {TOO_LARGE, TOO_SLOW} else Outcome.NO_ANSWER


class CutOff(Exception):
    """Raised when a relayed response is incomplete. The server then closes the connection, which shows the browser
    that the response is incomplete."""


async def say(
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    status: int,
    text: str,
    extra: Sequence[tuple[bytes, bytes]] = (),
    content_type: str = TEXT,
) -> None:
    """Sends a short response that comes from the portal itself and not from the program. Adds security headers."""
    body = f"{text}\n".encode() if text else b""
    own = SECURITY | {
        b"content-type": content_type.encode(),
        b"content-length": str(len(body)).encode(),
        b"cache-control": b"no-store",
        b"referrer-policy": b"no-referrer",
    }
    await send({"type": "http.response.start", "status": status, "headers": [*own.items(), *extra]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
