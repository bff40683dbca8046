"""Tests the handler that calls Django: what passes between event loop and thread for a request, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.signals import request_finished, request_started
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from portal.edge.app import Edge
from portal.edge.handler import Handler
from portal.edge.threads import close_all
from tests.portal.edge.test_bounds import Call, run, until
from tests.waiting import PATIENCE


class Seen:
    """Records what happens in the views of this module."""

    def __init__(self) -> None:
        self.began, self.ended, self.signals, self.go_on = False, False, [0, 0], threading.Event()


seen = Seen()


async def waits(request: HttpRequest) -> HttpResponse:
    seen.began = True
    try:
        await asyncio.Event().wait()
    finally:
        seen.ended = True
    raise AssertionError


async def streams(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(_pieces())


async def _pieces() -> AsyncIterator[bytes]:
    try:
        yield b"first"
        await asyncio.Event().wait()
    finally:
        seen.ended = True


async def short(request: HttpRequest) -> StreamingHttpResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"all"

    return StreamingHttpResponse(pieces())


def late(request: HttpRequest) -> StreamingHttpResponse:
    seen.began = True
    assert seen.go_on.wait(PATIENCE)
    return StreamingHttpResponse([b"late"])


urlpatterns = [
    path("plain/", lambda request: HttpResponse(request.body)),
    path("wrong/", lambda request: 1 / 0),  # type: ignore[arg-type,return-value]
    path("waits/", waits),
    path("short/", short),
    path("late/", late),
    path("streams/", streams),
    path("healthz", lambda request: HttpResponse(), name="healthz"),
    path("login/", lambda request: HttpResponse(), name="login"),
]


@pytest.fixture(autouse=True)
def _views(settings: LazySettings) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    seen.__init__()  # type: ignore[misc]

    def started(sender: Any, **named: Any) -> None:
        seen.signals[0] += 1

    def finished(sender: Any, **named: Any) -> None:
        seen.signals[1] += 1

    request_started.connect(started)
    request_finished.connect(finished)
    yield
    request_started.disconnect(started)
    request_finished.disconnect(finished)
    close_all()


def test_a_request_is_one_visit_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[Any] = []
    submit = ThreadPoolExecutor.submit

    def counted(self: ThreadPoolExecutor, work: Any, *args: Any, **named: Any) -> Any:
        works.append(work)
        return submit(self, work, *args, **named)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    call = run(Call("/plain/", "POST", {"content-length": "4"}, [b"some"]).to(Edge(Handler()).serve))
    assert (call.status, call.body) == (200, b"some")
    assert len(works) == 1
    assert seen.signals == [1, 1]


def test_an_error_in_a_view_becomes_a_response() -> None:
    call = run(Call("/wrong/", body=[b""]).to(Edge(Handler()).serve))
    assert call.status == 500
    assert seen.signals == [1, 1]


def test_a_stream_is_closed_though_its_client_disconnects_at_its_end() -> None:
    """Proves that Django's signal for the end of a request is sent even if the client disconnects just as the stream
    ends.

    ASGI servers report that the client has disconnected as soon as they have sent the whole response. The handler can
    still be closing the stream at this moment.
    """

    class Ending(Call):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self.left.set()
                await asyncio.sleep(0)

    for count in range(1, 21):
        call = run(Ending("/short/", body=[b""]).to(Edge(Handler()).serve))
        assert (call.status, call.body) == (200, b"all")
        assert seen.signals == [count, count]


def test_a_client_that_disconnects_before_a_stream_begins_closes_it() -> None:
    async def leave() -> None:
        call = Call("/late/", body=[b""])
        served = asyncio.create_task(call.to(Edge(Handler()).serve))
        await until(lambda: seen.began)
        call.left.set()
        await served
        assert seen.signals == [1, 0]
        seen.go_on.set()
        await until(lambda: seen.signals == [1, 1])

    run(leave())


def test_an_asynchronous_view_ends_when_its_client_leaves() -> None:
    async def leave() -> Call:
        call = Call("/waits/", body=[b""])
        served = asyncio.create_task(call.to(Edge(Handler()).serve))
        await until(lambda: seen.began)
        assert not seen.ended
        call.left.set()
        return await served

    assert run(leave()).status == 0
    assert seen.ended
    assert seen.signals == [1, 1]


def test_a_stream_ends_when_its_client_leaves() -> None:
    async def leave() -> Call:
        call = Call("/streams/", body=[b""])
        served = asyncio.create_task(call.to(Edge(Handler()).serve))
        await until(lambda: call.body == b"first")
        assert not seen.ended
        call.left.set()
        return await served

    assert run(leave()).status == 200
    assert seen.ended
    assert seen.signals == [1, 1], "a stream is closed once"


class LikeAFuture:
    """An awaitable like the result of granian's `receive`: it can be awaited, but it is not an asyncio.Future."""

    _asyncio_future_blocking = False

    def __init__(self, message: Any) -> None:
        self._future = asyncio.ensure_future(message)

    def __await__(self) -> Iterator[Any]:
        return self._future.__await__()

    def add_done_callback(self, work: Any, **named: Any) -> None:
        self._future.add_done_callback(lambda _: work(self), **named)

    def __getattr__(self, name: str) -> Any:
        if name == "_cancel_message":
            raise AttributeError(name)
        return getattr(self._future, name)


def test_a_servers_awaitable_need_not_be_a_future() -> None:
    """Proves that the server's `receive` may return an awaitable that is not an asyncio.Future.

    The handler then leaves no task running, and the event loop reports no error.
    """
    errors: list[Any] = []

    class Granian(Call):
        def receive(self) -> Any:
            return LikeAFuture(super().receive())

    async def exchange() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        call = await Granian("/plain/", body=[b""]).to(Edge(Handler()).serve)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        return call.status

    assert run(exchange()) == 200
    assert not errors
