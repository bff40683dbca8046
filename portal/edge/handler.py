"""Runs Django in a single thread for the whole request, instead of changing threads for each middleware and signal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from threading import Lock
from typing import IO, Any, cast

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from portal.edge.racing import first_of

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Handler(ASGIHandler):
    """An ASGI handler like Django's, in which all middleware is synchronous.

    Django's handler passes a request between event loop and thread about ten times. For many pages, this takes longer
    than the work on the page. Here one thread runs the signals, the middleware and the view, and closes the response.
    Only asynchronous views and streams return to the event loop.
    """

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        set_script_prefix(get_script_prefix(scope))
        visit = _Visit()
        try:
            # The body is complete, so any further message means that the client has disconnected.
            await first_of(self._exchange(visit, scope, body, send), receive())
        finally:
            if visit.end():
                await sync_to_async(visit.close)()

    async def _exchange(self, visit: _Visit, scope: Scope, body: IO[bytes], send: Send) -> None:
        answer = await sync_to_async(self._answer)(visit, scope, body)
        await self.send_response(answer, send)

    def _answer(self, visit: _Visit, scope: Scope, body: IO[bytes]) -> HttpResponseBase:
        """Returns Django's response to the request. A response that is not a stream is already complete and closed."""
        signals.request_started.send(sender=self.__class__, scope=scope)
        try:
            request, refusal = self.create_request(scope, body)
            answer = cast(HttpResponseBase, refusal) if request is None else self.get_response(request)
        except BaseException:  # the client of an asynchronous view left, and there is no answer to close
            signals.request_finished.send(sender=self.__class__)
            raise
        finally:
            body.close()
        answer._handler_class = self.__class__  # type: ignore[attr-defined]  # as Django's own
        if isinstance(answer, FileResponse):
            answer.block_size = self.chunk_size
        visit.answer = answer
        if not answer.streaming or visit.is_over:
            visit.close()
        return answer


class _Visit:
    """Holds the response to one request until it is closed, either by the thread or by the event loop. Ensures that it
    is closed exactly once."""

    def __init__(self) -> None:
        self.answer: HttpResponseBase | None = None
        self.is_over = False
        self._lock = Lock()

    def end(self) -> bool:
        """Records that the event loop no longer waits for the response. Returns True if there is a response, which the
        caller must then close."""
        self.is_over = True
        return self.answer is not None

    def close(self) -> None:
        with self._lock:
            answer, self.answer = self.answer, None
        if answer is not None:
            answer.close()
