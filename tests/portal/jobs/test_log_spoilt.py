"""Reading a log costs little work and gives clear messages, even if the log is not a plain file or never ends.

This is also true if the client disconnects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import reverse

from portal.asgi import application
from portal.edge.threads import close_all
from portal.jobs import log_search, log_views
from scheduling.backends.local import removal
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "another's secret"
TERABYTE = 1 << 40


@pytest.fixture
def log(scene: Scene) -> Iterator[Path]:
    """Yields the path of the log of worker 0 of Bob's running job. No file exists there yet."""
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    yield files.log(0)
    removal.remove(files)


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def directory(path: Path, outside: Path) -> None:
    path.mkdir()


def linked_folder(path: Path, outside: Path) -> None:
    (outside.parent / path.name).write_text(SECRET)
    path.parent.rmdir()
    path.parent.symlink_to(outside.parent)


def test_a_file_that_is_no_log_of_fairlots_is_refused_with_the_reason(
    scene: Scene, log: Path, browser_of: Callable[..., Client], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    outside = tmp_path / "elsewhere" / "outside"
    outside.write_text(SECRET)
    browser = browser_of(scene.people.bob)
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    for spoil in (link, hard_link, fifo, directory, linked_folder):
        removal.remove(files)
        files.make()
        spoil(log, outside)
        said = everything_said(scene, browser)
        assert SECRET not in said, spoil
        assert str(tmp_path) not in said, spoil


def everything_said(scene: Scene, browser: Client) -> str:
    """Requests all pages and API calls that read the log, and returns their responses.

    Fails if a response does not say that the log is unreadable.
    """

    def get(name: str, query: str = "") -> Any:
        return browser.get(reverse(name, args=[scene.job.pk]) + query)

    assert get("job_log").status_code == 200
    answers = [get("job_log_piece", "?end=9"), get("job_log_search", "?q=secret")]
    for answer in answers:
        assert answer.status_code == 409
        assert answer.json()["code"] == "log_unreadable"
        assert answer.json()["problem"].startswith("The log cannot be read: ")
    raw = get("job_log_raw")
    assert (raw.status_code, raw.content[:24]) == (409, b"The log cannot be read: ")
    api = browser.get(f"/api/v1/jobs/{scene.job.pk}/log")
    assert api.status_code == 409
    assert api.json()["detail"].startswith("The log cannot be read: ")
    events: str = async_to_sync(_events)(scene)
    assert events.startswith("event: problem\n")
    assert "The log cannot be read: " in events
    return "".join(answer.content.decode() for answer in (*answers, raw, api)) + events


async def _events(scene: Scene) -> str:
    client = AsyncClient()
    await client.aforce_login(scene.people.bob, backend="django.contrib.auth.backends.ModelBackend")
    answer = await client.get(reverse("job_log_stream", args=[scene.job.pk]))
    assert isinstance(answer, StreamingHttpResponse)
    stream: AsyncIterator[bytes] = aiter(answer.streaming_content)
    return "".join([block.decode() async for block in stream])


def test_only_ranks_of_the_job_have_a_log(scene: Scene, log: Path, browser_of: Callable[..., Client]) -> None:
    log.write_text("one\n")
    for name in ("rank-x.log", "rank-7.log", "rank-0.log.old", "rank-99999999999999999999.log"):
        (log.parent / name).write_text("extra")
    browser = browser_of(scene.people.bob)
    page = browser.get(reverse("job_log", args=[scene.job.pk]))
    assert page.status_code == 200
    assert page.context["choices"] == [("0", "Worker 0")]
    for name in ("job_log_raw", "job_log_piece", "job_log_search", "job_log_stream"):
        assert browser.get(reverse(name, args=[scene.job.pk]) + "?rank=7&q=x&end=1").status_code == 404


def test_a_sparse_log_of_terabytes_is_searched_and_loaded_only_as_far_as_a_log_may_reach(
    scene: Scene, log: Path, browser_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.open("wb") as file:
        file.write(b"needle\n")
        file.truncate(4 * TERABYTE)
    backend = backend_for(scene.job.cluster)
    assert isinstance(backend, LocalBackend)
    monkeypatch.setattr(backend, "log_limit_bytes", 300_000)
    browser = browser_of(scene.people.bob)
    found = browser.get(reverse("job_log_search", args=[scene.job.pk]), {"q": "needle"})
    assert found.json() == {"lines": [[0, 0]], "complete": True, "next": None}
    raw = browser.get(reverse("job_log_raw", args=[scene.job.pk]))
    assert 300_000 <= int(raw["Content-Length"]) < 400_000


def test_a_search_that_is_cut_says_where_to_go_on(
    scene: Scene, log: Path, browser_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "SEARCH_BYTES", 1000)
    log.write_bytes(b"0123456\n" * 300 + b"needle\n")
    browser, url = browser_of(scene.people.bob), reverse("job_log_search", args=[scene.job.pk])
    begin, answers = "0", []
    while begin is not None:
        answers.append(browser.get(url, {"q": "needle", "from": begin}).json())
        begin = answers[-1]["next"]
    assert [answer["next"] for answer in answers] == ["1000", "2000", None]
    assert [answer["complete"] for answer in answers] == [False, False, True]
    assert answers[-1]["lines"] == [[0, 2400]]


def test_a_search_ends_when_its_time_is_up(
    scene: Scene, log: Path, browser_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "SEARCH_SECONDS", -1.0)
    log.write_bytes(b"needle\n")
    url = reverse("job_log_search", args=[scene.job.pk])
    found = browser_of(scene.people.bob).get(url, {"q": "needle"}).json()
    assert found == {"lines": [], "complete": False, "next": "0"}


def test_any_place_behind_the_end_is_empty_and_what_is_no_place_is_refused(
    scene: Scene, log: Path, browser_of: Callable[..., Client]
) -> None:
    log.write_bytes(b"needle\n")
    browser = browser_of(scene.people.bob)
    search, piece = (reverse(name, args=[scene.job.pk]) for name in ("job_log_search", "job_log_piece"))
    api = f"/api/v1/jobs/{scene.job.pk}/log"
    for begin in ("7", "100000", "9" * 17):
        found = browser.get(search, {"q": "needle", "from": begin})
        assert found.json() == {"lines": [], "complete": True, "next": None}
        assert browser.get(piece, {"begin": begin}).json()["pieces"] == []
    for offset in (7, 2**44, 2**62, 2**63 - 1):
        answer = browser.get(api, {"offset": offset})
        assert answer.status_code == 200
        assert (answer.json()["text"], answer.json()["next_offset"]) == ("", offset)
    for begin in ("-1", "x", "1" * 30, "\u0661", "1.0"):
        assert browser.get(search, {"q": "x", "from": begin}).status_code in {200, 422}, begin


def test_a_search_ends_when_its_reader_leaves(
    scene: Scene, log: Path, browser_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the client disconnects after the first of 40 pieces of the log, the search does not read the rest."""
    monkeypatch.setattr(log_search, "SEARCH_PIECE", 1000)
    log.write_bytes(b"0123456\n" * 5000)
    cookies = browser_of(scene.people.bob).cookies
    headers = [(b"host", b"localhost"), (b"cookie", cookies.output(header="", sep=";").strip().encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": reverse("job_log_search", args=[scene.job.pk]), "query_string": b"q=needle", "headers": headers,
        "server": ("localhost", 80), "client": ("127.0.0.1", 5),
    }  # fmt: skip
    looks: list[int] = []
    real = log_search.Search.look

    async def request() -> None:
        loop, first, leave = asyncio.get_running_loop(), True, asyncio.Event()

        def look(search: log_search.Search) -> bool:
            looks.append(1)
            loop.call_soon_threadsafe(leave.set)
            return real(search)

        async def receive() -> dict[str, Any]:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"", "more_body": False}
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        monkeypatch.setattr(log_views.Search, "look", look)
        await application(scope, receive, send)

    sent: list[dict[str, Any]] = []
    async_to_sync(request)()
    close_all()
    assert looks
    assert len(looks) < 20
    assert sent == []
