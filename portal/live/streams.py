"""Server-sent events, shared by all streams of the portal."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
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
LONGEST_STREAM = 600.0  # seconds; then the page asks again
CHECK_SECONDS = 15.0  # how often the reader's rights are checked
ANSWER_SECONDS = 15.0  # how long a check may take
MOST_UNANSWERED = 3  # so many consecutive checks without an answer end the stream
COMMENT = ": still here\n\n"


def event(data: Any, *, name: str = "", event_id: object = "") -> str:
    """Returns one event; `data` is sent as JSON, so that it stays on one line."""
    lines = [f"id: {event_id}"] if event_id != "" else []
    if name:
        lines.append(f"event: {name}")
    lines.append(f"data: {data if isinstance(data, str) and name else json.dumps(data)}")
    return "\n".join(lines) + "\n\n"


def stream(events: AsyncIterator[str]) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        events,
        content_type="text/event-stream; charset=utf-8",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


class Rights:
    """Checks whether the reader of a stream is still signed in and may still see its subject.

    It checks at most every CHECK_SECONDS, with one short call in any free thread.
    """

    def __init__(self, request: HttpRequest, user: User, may_see: Callable[[User], bool]) -> None:
        self._session_key = request.session.session_key or ""
        self._user_id, self._password = user.pk, user.password
        self._may_see = may_see
        self._unanswered = 0
        # Streams that began together are not checked together.
        self._due = time.monotonic() + CHECK_SECONDS * random.uniform(0.3, 1)  # noqa: S311 - spreads the checks

    def due_in(self) -> float:
        """Returns the seconds until the next check."""
        return max(0.0, self._due - time.monotonic())

    async def hold(self) -> bool:
        """Returns whether the reader may go on; checks if that is due.

        A check without an answer does not end the stream, because the next one may succeed; MOST_UNANSWERED of them
        do.
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
        found: User | None = _signed_in.first(self._session_key, self._user_id, self._password)
        if found is None:
            return False
        found.keep_roles()
        return self._may_see(found)


# Hundreds of streams ask every few seconds. A new password ends all sessions, as for pages.
_signed_in = Prepared(
    lambda session, user, password: User.objects.filter(
        Exists(Session.objects.filter(session_key=session, expire_date__gt=Now())),
        pk=user,
        is_active=True,
        password=password,
    )
)


class CutOff(Exception):
    """A download is cut off, which the server shows by closing the connection."""


async def while_allowed(pieces: AsyncIterator[T], rights: Rights) -> AsyncIterator[T]:
    """Yields the pieces of a download as long as the reader may read them. Raises CutOff."""
    async for piece in pieces:
        if not await rights.hold():
            raise CutOff("the reader of a download may not read it any more")
        yield piece
