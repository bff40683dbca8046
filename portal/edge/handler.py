"""Django behind the edge: a request is one visit to its thread, not one for each middleware and signal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import Lock
from typing import IO

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from portal.edge.bodies import Message, Receive, Scope
from portal.edge.racing import first_of

Send = Callable[[Message], Awaitable[None]]


class Handler(ASGIHandler):
    """Answers as Django's own does, with all middleware synchronous.

    Django's hands a request over between its event loop and its thread about ten times, which costs more than
    many a page. Here the thread does everything: signals, middleware, view, and the closing of the answer. Only
    asynchronous views and streams come back to the event loop.
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
            # What is received now says that the client has left.
            await first_of(self._exchange(visit, scope, body, send), receive())
        finally:
            if visit.end():
                await sync_to_async(visit.close)()

    async def _exchange(self, visit: _Visit, scope: Scope, body: IO[bytes], send: Send) -> None:
        answer = await sync_to_async(self._answer)(visit, scope, body)
        await self.send_response(answer, send)

    def _answer(self, visit: _Visit, scope: Scope, body: IO[bytes]) -> HttpResponseBase:
        """The answer; complete and closed unless it is a stream."""
        signals.request_started.send(sender=self.__class__, scope=scope)
        try:
            request, refusal = self.create_request(scope, body)
            answer = refusal if request is None else self.get_response(request)
        except BaseException:  # the client of an asynchronous view has left: there is no answer to be closed
            signals.request_finished.send(sender=self.__class__)
            raise
        finally:
            body.close()
        answer._handler_class = self.__class__
        if isinstance(answer, FileResponse):
            answer.block_size = self.chunk_size
        visit.answer = answer
        if not answer.streaming or visit.is_over:
            visit.close()
        return answer


class _Visit:
    """What is left of a request when it is over: an answer that somebody must close, once."""

    def __init__(self) -> None:
        self.answer: HttpResponseBase | None = None
        self.is_over = False
        self._lock = Lock()

    def end(self) -> bool:
        """Nobody waits for the answer any more; tells whether there is one to be closed."""
        self.is_over = True
        return self.answer is not None

    def close(self) -> None:
        with self._lock:
            answer, self.answer = self.answer, None
        if answer is not None:
            answer.close()
