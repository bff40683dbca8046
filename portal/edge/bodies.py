"""Reads the whole body of a request before Django gets the request.

It limits the size and time of each body, and the total size of all bodies in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from django.conf import settings
from django.urls import Resolver404, resolve

from portal.edge.answers import Answer, Refused
from portal.edge.clients import Client
from portal.edge.shares import Shares

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# The limit in bytes for clients without a login, for unknown URLs, and for methods without a body. A login form is far
# smaller.
SMALL = 64 * 1024
# The longest pause between two pieces of a body, in seconds.
PAUSE_SECONDS = 10.0
# Limits on the bodies of all requests that this process has not answered yet.
MOST_BYTES = 64 * 1024 * 1024
MOST_READ_AT_ONCE = 256
# One address may use a quarter of each limit. Large bodies leave a quarter of the bytes free for small bodies.
PART = 4

# The names of the URLs that take uploads of code: the API, and the pages with the form of a job.
UPLOADS = {
    "code", "convert_spec", "submit", "schedule_new", "schedule_edit", "service_new", "service_update", "session_new"
}  # fmt: skip

TOO_SLOW = Answer(408, "The request did not arrive in time.", closes=True)
TOO_MANY = Answer(
    503, "Too many requests are being received. Try again in a moment.", closes=True, retry_after=5
)


class Gone(Exception):
    """Raised if the client disconnects before the whole request has arrived."""


class Bodies:
    """Reads request bodies, and counts the bytes of all bodies that are in use."""

    def __init__(self) -> None:
        self._bytes = Shares(MOST_BYTES, MOST_BYTES // PART)
        self._places = Shares(MOST_READ_AT_ONCE, MOST_READ_AT_ONCE // PART)

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive, client: Client) -> AsyncIterator[bytes | None]:
        """Provides a context manager that reads the request's body and yields it, or None for a request without a body.

        The bytes count against the limit until the context ends. Raises Refused for a body that is too large or too
        slow, and Gone if the client disconnects.
        """
        declared = _declared_length(scope)
        if declared == 0:
            yield None
            return
        limit = limit_of(scope, client)
        if declared is not None and declared > limit:
            raise Refused(_too_large(limit))
        if not self._places.has(client.address):
            raise Refused(TOO_MANY)
        body = bytearray()
        try:
            self._places.take(client.address)
            try:
                async for piece in _pieces(receive):
                    if len(body) + len(piece) > limit:
                        raise Refused(_too_large(limit))
                    self._make_room(client, len(piece), is_small=len(body) + len(piece) <= SMALL)
                    body += piece
            finally:
                self._places.give_back(client.address)
            yield bytes(body)
        finally:
            self._bytes.give_back(client.address, len(body))

    def _make_room(self, client: Client, count: int, *, is_small: bool) -> None:
        """Counts the next `count` bytes of a body against two limits: that of the client's address, and that of all
        bodies.

        A part of the limit of all bodies is reserved for small bodies; `is_small` says whether this body is small.
        Raises Refused if the bytes exceed a limit.
        """
        if not self._bytes.has(client.address, count, leaving=0 if is_small else MOST_BYTES // PART):
            raise Refused(TOO_MANY)
        self._bytes.take(client.address, count)


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    until = time.monotonic() + settings.FAIRLOT_BODY_SECONDS
    more = True
    while more:
        try:
            async with asyncio.timeout(min(PAUSE_SECONDS, until - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise Refused(TOO_SLOW) from None
        if message["type"] == "http.disconnect":
            raise Gone
        yield message.get("body", b"")
        more = message.get("more_body", False)


def limit_of(scope: Scope, client: Client) -> int:
    """Returns the largest number of bytes that the body of this request may have.

    The limit is SMALL for methods such as GET, for a request without a login, and for an unknown URL. For any other
    request it is FAIRLOT_BODY_LIMIT_BYTES, or more for a URL that takes uploads of code.
    """
    if scope["method"] in {"GET", "HEAD", "OPTIONS", "TRACE"} or not client.login:
        return SMALL
    try:
        found = resolve(scope["path"])
    except Resolver404:
        return SMALL
    if found.url_name == "api_not_found":
        return SMALL
    takes_uploads = found.url_name in UPLOADS
    return int(settings.FAIRLOT_UPLOAD_BODY_BYTES if takes_uploads else settings.FAIRLOT_BODY_LIMIT_BYTES)


def _declared_length(scope: Scope) -> int | None:
    """Returns the length of the body that the request's headers declare: 0 without a body, None for a chunked body."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value)  # the server has checked that the value is a number
    return length


def _too_large(limit: int) -> Answer:
    kibibytes = f"{limit / 1024:g} KiB" if limit < 1024 * 1024 else f"{limit / 1024 / 1024:g} MiB"
    return Answer(413, f"The request is too large: at most {kibibytes} are accepted here.", closes=True)
