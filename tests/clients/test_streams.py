"""The client reads server-sent events, and continues after the last event where a stream breaks off."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import httpx2
import pytest

from fairlot_client import AsyncFairlot, Fairlot
from fairlot_client.calls import Event
from fairlot_client.cli import following
from fairlot_client.errors import ConnectionFailed, NotFound, Unavailable
from fairlot_client.events import Parser

START = "id: 0\nevent: start\ndata: {}\n\n"
LINES = 'id: 4\ndata: {"items": [1]}\n\n: still here\n\n'
END = "id: 4\nevent: end\ndata: {}\n\n"
BYE = "event: bye\ndata: again\n\n"


class Portal:
    """Answers each request with the next of `answers`: a status, or the text of a stream; a text that ends in "…"
    breaks off."""

    def __init__(self, *answers: int | str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["Accept"] == "text/event-stream"
        self.asked.append(request.headers.get("Last-Event-ID", ""))
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return httpx2.Response(answer, json={"detail": "no"})
        if answer.endswith("…"):
            return httpx2.Response(200, stream=_Broken(answer))
        return httpx2.Response(200, text=answer)


class _Broken(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, text: str) -> None:
        self.text = text.removesuffix("…")

    def __iter__(self) -> Iterator[bytes]:
        yield self.text.encode()
        raise httpx2.ReadError("broken")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.text.encode()
        raise httpx2.ReadError("broken")


def followed(portal: Portal, retries: int = 2) -> list[str]:
    with Fairlot(
        "http://x", "t", retries=retries, transport=httpx2.MockTransport(portal), pause=lambda _: None
    ) as client:
        return [event.name for event in client.follow_job_log(7)]


def test_a_parser_makes_events_of_lines() -> None:
    parser = Parser()
    events = [event for line in f"{LINES}{BYE}event: none\n\n".splitlines() if (event := parser.feed(line))]
    assert events == [Event("", {"items": [1]}, "4"), Event("comment", None, "4"), Event("bye", "again", "4")]


def test_a_stream_is_continued_where_it_broke_off_until_it_ends() -> None:
    portal = Portal(START + LINES + "…", 503, START + BYE, START + LINES, END)
    assert followed(portal) == ["start", "", "comment", "start", "start", "", "comment", "end"]
    assert portal.asked == ["", "4", "4", "0", "4"]


@pytest.mark.parametrize(
    ("answers", "error"),
    [((404,), NotFound), ((503, 503, 503), Unavailable), (("…",), ConnectionFailed),
     ((START + "…", 503, 503, 503), Unavailable)],
)  # fmt: skip
def test_a_stream_that_cannot_be_opened_is_an_error(
    answers: tuple[int | str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        followed(Portal(*answers))


def test_the_client_for_asyncio_follows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal(START + LINES + "…", 503, END)
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    async def follow() -> list[str]:
        monkeypatch.setattr(asyncio, "sleep", pause)
        async with AsyncFairlot("http://x", "t", transport=httpx2.MockTransport(portal)) as client:
            return [event.name async for event in client.follow_notifications()]

    assert asyncio.run(follow()) == ["start", "", "comment", "end"]
    assert len(paused) == 2


def test_the_command_line_follows_the_stream_and_asks_from_time_to_time_if_it_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    portal = Portal(START + 'id: 4\ndata: {"items": [{"text": "one\\n"}]}\n\n: still here\n\n' + END, 404)
    state = {"id": 7, "state": "running", "reason": "", "end_message": ""}
    with Fairlot("http://x", "t", retries=0, transport=httpx2.MockTransport(portal)) as client:
        client.get_job = lambda job: state  # type: ignore[method-assign]
        app = SimpleNamespace(client=client)
        for reached in (("4", True), ("0", False)):
            assert (
                following.stream(app, 7, "0", (0, None), lambda line: sys.stdout.write(line["text"]))
                == reached
            )
    said = capsys.readouterr()
    assert (said.out, said.err) == ("one\n", "Job 7 is running.\n")
