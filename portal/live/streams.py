"""Server-sent events, and repeated checks during a stream or download whether its reader may still read it."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from threading import Lock
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.db import Error
from django.db.models import Exists
from django.db.models.functions import Now
from django.http import HttpRequest, StreamingHttpResponse

from accounting.core.prepared import Prepared
from accounting.models import User
from portal.edge.turns import Full

logger = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT = 15.0  # seconds; proxies close connections that are silent for longer
LONGEST_STREAM = 600.0  # seconds; then the page opens another stream
CHECK_SECONDS = 15.0  # seconds between two checks of the reader's rights
ANSWER_SECONDS = 15.0  # the longest time of a check in seconds
MOST_UNANSWERED = 3  # the stream ends after this number of consecutive checks without an answer
MOST_STREAMS = 10  # that programs of one user may have open at once in a web process
CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
COMMENT = ": still here\n\n"


def event(data: Any, *, name: str = "", event_id: object = "") -> str:
    """Returns one server-sent event as text. `name` and `event_id` are left out if they are empty.

    `data` is encoded as a single line of JSON, except for a string in an event with a name. Such a string is sent
    unchanged, without quotes.
    """
    lines = [f"id: {event_id}"] if event_id != "" else []
    if name:
        lines.append(f"event: {name}")
    lines.append(f"data: {data if isinstance(data, str) and name else json.dumps(data)}")
    return "\n".join(lines) + "\n\n"


def stream(events: AsyncIterator[str]) -> StreamingHttpResponse:
    return StreamingHttpResponse(events, content_type=CONTENT_TYPE, headers=HEADERS)


class TooManyStreams(Exception):
    """Raised if a user would have more than MOST_STREAMS streams open at once in this web process."""


class _CountedStream(StreamingHttpResponse):
    """A stream that frees its user's place when it is closed, also if nothing of it was sent."""

    def __init__(self, user: int, events: AsyncIterator[str]) -> None:
        super().__init__(events, content_type=CONTENT_TYPE, headers=HEADERS)
        self._user: int | None = user

    def close(self) -> None:
        super().close()
        user, self._user = self._user, None
        if user is not None:
            with _lock:
                _open[user] -= 1
                if not _open[user]:
                    del _open[user]


_lock = Lock()
_open = Counter[int]()  # streams by the keys of their users


def counted_stream(user: User, events: AsyncIterator[str]) -> StreamingHttpResponse:
    """Like `stream`, for a program of `user`. Raises TooManyStreams if the user has too many open."""
    with _lock:
        if _open[user.pk] >= MOST_STREAMS:
            raise TooManyStreams
        _open[user.pk] += 1
    return _CountedStream(user.pk, events)


class Rights:
    """Checks during a stream whether the reader is still signed in and may still read the stream.

    A check runs at most every CHECK_SECONDS, as one short query in any free thread.
    """

    def __init__(
        self,
        request: HttpRequest,
        user: User,
        may_see: Callable[[User], bool],
        reader: Callable[[], User | None] | None = None,
    ) -> None:
        """Prepares the checks for the stream of `user`, who may read it as long as `may_see`.

        `reader` finds a user who has not signed in with a session, such as the owner of a token; it returns None once
        this user may no longer call.
        """
        self._session_key = request.session.session_key or ""
        self.user = user
        self._user_id, self._password = user.pk, user.password
        self._reader = reader or self._signed_in
        self._may_see = may_see
        self._unanswered = 0
        # A random first delay, so that streams that began together are checked at different times.
        self._due = time.monotonic() + CHECK_SECONDS * random.uniform(0.3, 1)  # noqa: S311 - spreads the checks

    def due_in(self) -> float:
        """Returns the number of seconds until the next check; 0 if the check is due."""
        return max(0.0, self._due - time.monotonic())

    async def hold(self) -> bool:
        """Returns whether the reader may continue to read.

        - Returns True without a check if the last check is less than CHECK_SECONDS old.
        - If the database does not answer a check, returns True. After MOST_UNANSWERED checks in a row without an
          answer, returns False.
        """
        if self.due_in() > 0:
            return True
        self._due = time.monotonic() + CHECK_SECONDS
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                holds = await sync_to_async(self._ask)()
        except (Error, Full, TimeoutError) as error:
            self._unanswered += 1
            logger.warning("the rights of a stream's reader could not be checked: %r", error)
            return self._unanswered < MOST_UNANSWERED
        self._unanswered = 0
        return holds

    def _ask(self) -> bool:
        found = self._reader()
        if found is None:
            return False
        found.keep_roles()
        return self._may_see(found)

    def _signed_in(self) -> User | None:
        found: User | None = _signed_in.first(self._session_key, self._user_id, self._password)
        return found


# A prepared query, because hundreds of streams run it every few seconds. It compares the password, because a new
# password ends all sessions of a user.
_signed_in = Prepared(
    lambda session, user, password: User.objects.filter(
        Exists(Session.objects.filter(session_key=session, expire_date__gt=Now())),
        pk=user,
        is_active=True,
        password=password,
    )
)


class CutOff(Exception):
    """Raised to cut off a download. The server then closes the connection, so that the browser notices the incomplete
    file."""


async def while_allowed(pieces: AsyncIterator[T], rights: Rights) -> AsyncIterator[T]:
    """Yields the pieces of a download while the reader may read it. Raises CutOff when the reader loses this right."""
    async for piece in pieces:
        if not await rights.hold():
            raise CutOff("the user lost the right to read the file during the download")
        yield piece
