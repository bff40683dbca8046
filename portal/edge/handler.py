"""Django behind the edge: a request is one visit to its thread, not one for each middleware and signal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from portal.edge.bodies import Message, Receive, Scope

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
        try:
            await self._while_there(receive, self._exchange(scope, body, send))
        finally:
            body.close()

    async def _exchange(self, scope: Scope, body: Any, send: Send) -> None:
        answer = await sync_to_async(self._answer)(scope, body)
        try:
            await self.send_response(answer, send)
        finally:
            if answer.streaming:
                await sync_to_async(answer.close)()

    def _answer(self, scope: Scope, body: Any) -> HttpResponseBase:
        """The answer; complete and closed unless it is a stream."""
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        answer = refusal if request is None else self.get_response(request)
        answer._handler_class = self.__class__
        if isinstance(answer, FileResponse):
            answer.block_size = self.chunk_size
        if not answer.streaming:
            answer.close()
        return answer

    async def _while_there(self, receive: Receive, work: Awaitable[None]) -> None:
        """Ends the work when the client goes away."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone = not working.done()
            working.cancel()
            leaving.cancel()
            ends = await asyncio.gather(working, leaving, return_exceptions=True)
        if isinstance(ends[0], Exception) and not gone:
            raise ends[0]
