"""The stream sends a log as it grows, ends when the log ends, and continues after a disconnect without loss or
repetition."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from django.urls import reverse

from accounting.models import User
from portal.jobs import log_views
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db(transaction=True)
BINARY = "Grüße 日本語 🙂\n".encode() + b"\xff\xfe\x00\n" + b"10%\r50%\r100%\n"


@dataclass
class Got:
    """What a reader has received from the stream: the log's text, the last event's id, and the names of the events."""

    text: str = ""
    last_id: str = ""
    names: list[str] = field(default_factory=list)


@pytest.fixture
def log(scene: Scene) -> Path:
    """Returns the path of the log of worker 0 of Bob's running job."""
    path = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk).log(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


async def browser(user: User) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


async def follow(
    client: AsyncClient, job: Job, *, last_id: str = "", query: str = ""
) -> AsyncIterator[bytes]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    answer = await client.get(reverse("job_log_stream", args=[job.pk]) + query, headers=headers)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/event-stream")
    assert answer["X-Accel-Buffering"] == "no"
    return aiter(answer.streaming_content)


def take(got: Got, block: bytes) -> None:
    fields = dict(
        line.split(": ", 1) for line in block.decode().splitlines() if line and not line.startswith(":")
    )
    if not fields:
        return
    got.names.append(fields.get("event", "message"))
    got.last_id = fields.get("id", got.last_id)
    if "event" not in fields:
        got.text += "".join(text for _, text in json.loads(fields["data"])["pieces"])


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return async_to_sync(work)()


def end(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state=Job.State.SUCCEEDED)


def test_cut_anywhere_and_resumed_the_parts_are_the_file(scene: Scene, log: Path) -> None:
    data = b"".join(b"step %d loss 0.%d\n" % (n, n) for n in range(9000)) + BINARY * 40 + b"no line end"
    log.write_bytes(data)
    end(scene.job)

    async def read_in_parts() -> Got:
        client, got, parts = await browser(scene.people.bob), Got(), 0
        while "end" not in got.names:
            stream = await follow(client, scene.job, last_id=got.last_id, query="?offset=0")
            async with aclosing(stream):
                blocks = 0
                async for block in stream:
                    take(got, block)
                    blocks += 1
                    if blocks == 2:
                        break  # disconnects after the first piece
            parts += 1
            assert parts < 100
        assert parts > 2
        return got

    got = run(read_in_parts)
    assert got.text == data.decode("utf-8", "replace")
    assert got.last_id == str(len(data))


def test_it_follows_what_is_written_until_the_job_has_ended(scene: Scene, log: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_views, "STATE_LOOK", 0.05)
    monkeypatch.setattr(log_views, "LOOK", 0.02)
    written = ["first\n", "50%", "\r100%\n", "é\n"]

    async def read_while_it_grows() -> Got:
        got = Got()
        stream = await follow(await browser(scene.people.bob), scene.job)
        async with aclosing(stream):
            take(got, await anext(stream))
            for text in written:
                with log.open("ab") as file:
                    file.write(text.encode())
                while not got.text.endswith(text):
                    take(got, await anext(stream))
            await Job.objects.filter(pk=scene.job.pk).aupdate(state=Job.State.SUCCEEDED)
            async for block in stream:
                take(got, block)
        return got

    got = run(read_while_it_grows)
    assert got.text == "".join(written)
    assert (got.names[0], got.names[-1]) == ("start", "end")


def test_a_silent_log_sends_a_heartbeat(scene: Scene, log: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_views, "HEARTBEAT", 0.05)
    monkeypatch.setattr(log_views, "LOOK", 0.02)

    async def wait() -> bytes:
        stream = await follow(await browser(scene.people.bob), scene.job)
        async with aclosing(stream):
            await anext(stream)
            return await anext(stream)

    assert run(wait).startswith(b":")


def test_a_stream_that_lasted_long_enough_must_ask_again(scene: Scene, log: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_views, "LONGEST_STREAM", 0.1)
    monkeypatch.setattr(log_views, "LOOK", 0.02)
    log.write_bytes(b"one\n")

    async def read() -> Got:
        got = Got()
        async for block in await follow(await browser(scene.people.bob), scene.job):
            take(got, block)
        return got

    got = run(read)
    assert (got.text, got.last_id) == ("one\n", "4")
    assert (got.names[0], got.names[-1]) == ("start", "bye")


def test_a_long_log_begins_near_its_end_at_the_start_of_a_line(scene: Scene, log: Path) -> None:
    log.write_bytes(b"".join(b"line %07d\n" % n for n in range(100_000)))
    end(scene.job)

    async def read() -> Got:
        got = Got()
        stream = await follow(await browser(scene.people.bob), scene.job)
        async for block in stream:
            take(got, block)
        return got

    text = run(read).text
    assert len(text) <= log_views.TAIL + 13
    assert text.startswith("line ")
    assert text.endswith("line 0099999\n")


def test_logs_of_other_teams_are_not_there(scene: Scene, log: Path, browser_of) -> None:
    log.write_bytes(b"secret\n")
    for name in ("job_log", "job_log_stream", "job_log_raw", "job_log_piece", "job_log_search"):
        url = reverse(name, args=[scene.job.pk]) + "?q=secret&end=7"
        assert browser_of(scene.people.charlie).get(url).status_code == 404, name
        assert browser_of(scene.people.bob).get(reverse("job_log", args=[scene.job.pk])).status_code == 200


def test_strangers_hear_nothing(scene: Scene) -> None:
    async def ask() -> int:
        return (await AsyncClient().get(reverse("job_log_stream", args=[scene.job.pk]))).status_code

    assert run(ask) == 302


def test_the_whole_file_can_be_downloaded_unchanged(scene: Scene, log: Path) -> None:
    data = BINARY * 30_000  # longer than a single read
    log.write_bytes(data)

    async def download() -> tuple[bytes, str, str]:
        client = await browser(scene.people.bob)
        answer = await client.get(reverse("job_log_raw", args=[scene.job.pk]))
        body = b"".join([part async for part in answer.streaming_content])
        return body, answer["Content-Length"], answer["Content-Disposition"]

    body, length, name = run(download)
    assert body == data
    assert length == str(len(data))
    assert name == f'attachment; filename="supernova-{scene.job.pk}-rank-0.log"'


def test_earlier_pieces_join_without_a_gap(scene: Scene, log: Path, browser_of) -> None:
    data = b"".join(b"line %07d\n" % n for n in range(30_000))
    log.write_bytes(data)
    client, url = browser_of(scene.people.bob), reverse("job_log_piece", args=[scene.job.pk])
    end_, text = len(data), ""
    while end_:
        answer = client.get(url, {"end": end_}).json()
        text, end_ = "".join(text for _, text in answer["pieces"]) + text, answer["begin"]
    assert text == data.decode()
    around = client.get(url, {"around": 13 * 15_000}).json()["pieces"]
    assert [13 * 15_000, "line 0015000\n"] in around
    assert client.get(url, {"begin": 13 * 29_999}).json()["pieces"] == [[13 * 29_999, "line 0029999\n"]]
    assert client.get(url).status_code == 400


def test_searching_answers_with_offsets_or_says_what_is_wrong(scene: Scene, log: Path, browser_of) -> None:
    log.write_bytes(b"alpha\nbeta\nalphabet\n")
    client, url = browser_of(scene.people.bob), reverse("job_log_search", args=[scene.job.pk])
    assert client.get(url, {"q": "ALPHA"}).json() == {"offsets": [0, 11], "complete": True, "next": None}
    assert client.get(url, {"q": "^a.*t$", "regex": "1"}).json()["offsets"] == [11]
    wrong = client.get(url, {"q": "(", "regex": "1"})
    assert wrong.status_code == 422
    assert wrong.json()["problem"].startswith("This is not a valid regular expression")
    assert client.get(url, {"q": ""}).status_code == 422
