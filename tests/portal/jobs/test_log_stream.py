"""The stream sends a log as it grows, ends when the log ends, and continues after a disconnect without loss or
repetition."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from django.urls import reverse

from accounting.models import User
from portal.jobs import log_group, log_views, logs
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import Log
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
def log(scene: Scene) -> Iterator[Path]:
    """Yields the path of the log of worker 0 of Bob's running job."""
    files = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk)
    removal.remove(files)
    files.make()
    files.log(0).write_bytes(b"")
    yield files.log(0)
    removal.remove(files)


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
        got.text += "".join(piece[1] for piece in json.loads(fields["data"])["pieces"])


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return async_to_sync(work)()


def end(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state=Job.State.SUCCEEDED)


async def read_cut_at_random(scene: Scene, query: str, seed: int) -> Got:
    """Reads the whole stream over connections that break after a random number of events, within the next one.

    As a browser does, forgets the event that did not arrive as a whole, and resumes with the last event's id.
    """
    client, got, chance = await browser(scene.people.bob), Got(), Random(seed)
    while "end" not in got.names:
        stream = await follow(client, scene.job, last_id=got.last_id, query=query)
        async with aclosing(stream):
            for _ in range(chance.randrange(5)):
                if block := await anext(stream, None):
                    take(got, block)
            await anext(stream, None)
    return got


@pytest.mark.parametrize("seed", range(3))
def test_cut_anywhere_and_resumed_the_parts_are_the_file(scene: Scene, log: Path, seed: int) -> None:
    data = b"".join(b"step %d loss 0.%d\n" % (n, n) for n in range(9000)) + BINARY * 40 + b"no line end"
    log.write_bytes(data)
    end(scene.job)

    got = run(partial(read_cut_at_random, scene, "?offset=0", seed))
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
        text, end_ = "".join(piece[1] for piece in answer["pieces"]) + text, int(answer["begin"])
    assert text == data.decode()
    around = client.get(url, {"around": 13 * 15_000}).json()["pieces"]
    assert [13 * 15_000, "line 0015000\n", 0, 0, 0] in around
    rest = client.get(url, {"begin": 13 * 29_999}).json()
    assert rest == {
        "begin": str(13 * 29_999),
        "end": str(len(data)),
        "pieces": [[13 * 29_999, "line 0029999\n", 0, 0, 0]],
    }
    assert client.get(url).status_code == 400


def test_searching_answers_with_offsets_or_says_what_is_wrong(scene: Scene, log: Path, browser_of) -> None:
    log.write_bytes(b"alpha\nbeta\nalphabet\n")
    client, url = browser_of(scene.people.bob), reverse("job_log_search", args=[scene.job.pk])
    assert client.get(url, {"q": "ALPHA"}).json() == {
        "lines": [[0, 0], [0, 11]],
        "complete": True,
        "next": None,
    }
    assert client.get(url, {"q": "^a.*t$", "regex": "1"}).json()["lines"] == [[0, 11]]
    wrong = client.get(url, {"q": "(", "regex": "1"})
    assert wrong.status_code == 422
    assert wrong.json()["problem"].startswith("This is not a valid regular expression")
    assert client.get(url, {"q": ""}).status_code == 422


@pytest.fixture
def gang(scene: Scene, log: Path) -> list[Path]:
    """Returns the logs of two workers of Bob's running job, with times: they take turns."""
    Job.objects.filter(pk=scene.job.pk).update(workers=2, spec=scene.job.spec | {"workers": 2})
    files = LogFiles(log.parent)
    for rank in range(2):
        fd = files.open(rank, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        written = Log(fd, 10**6, times=files.times_writer(rank, attempt=1))
        for step in range(400):
            written.write(
                b"step %d of worker %d\n" % (step, rank), [(0, 1_790_000_000_000 + 2 * step + rank)]
            )
        written.release()
    return [files.log(rank) for rank in range(2)]


BOTH = [f"step {step} of worker {rank}\n" for step in range(400) for rank in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_all_workers_are_merged_by_time_and_cut_anywhere_the_parts_are_the_files(
    scene: Scene, gang: list[Path], monkeypatch, seed: int
) -> None:
    monkeypatch.setattr(log_group, "LEAST_READ", 1000)
    monkeypatch.setattr(logs, "READ", 1000)
    end(scene.job)

    got = run(partial(read_cut_at_random, scene, "?ranks=0-1&offset=0.0", seed))
    assert got.text == "".join(BOTH)
    assert got.last_id == ".".join(str(path.stat().st_size) for path in gang)


def test_a_line_of_one_worker_is_found_among_those_of_all_by_its_address(
    scene: Scene, gang: list[Path], browser_of
) -> None:
    client, args = browser_of(scene.people.bob), [scene.job.pk]
    found = client.get(reverse("job_log_search", args=args), {"ranks": "0-1", "q": "step 77 of"}).json()
    assert [rank for rank, _ in found["lines"]] == [0, 1]
    rank, offset = found["lines"][1]
    with gang[0].open("ab") as file:
        file.write(b"more\n" * 1000)  # the address stays the same
    part = client.get(
        reverse("job_log_piece", args=args), {"ranks": "0-1", "around": offset, "of": rank}
    ).json()
    texts = [piece[1] for piece in part["pieces"]]
    assert part["pieces"][texts.index("step 77 of worker 1\n")][:4] == [
        offset,
        texts[155],
        1,
        1_790_000_000_155,
    ]
    assert [text for text in texts if text != "more\n"] == BOTH
    page = client.get(reverse("job_log", args=args), {"ranks": "0-1", "rank": rank, "line": offset})
    assert f'data-ranks="0-1" data-line="{offset}" data-line-rank="1"' in page.content.decode()


def test_the_merged_log_can_be_downloaded(scene: Scene, gang: list[Path], monkeypatch) -> None:
    monkeypatch.setattr(log_group, "LEAST_READ", 1000)
    monkeypatch.setattr(log_views, "READ", 250)
    with gang[1].open("ab") as file:
        file.write(b"the last line has no end")

    async def download() -> tuple[str, str]:
        client = await browser(scene.people.bob)
        answer = await client.get(reverse("job_log_raw", args=[scene.job.pk]), {"ranks": "0-1"})
        body = b"".join([part async for part in answer.streaming_content])
        return body.decode(), answer["Content-Disposition"]

    text, name = run(download)
    lines = text.splitlines(keepends=True)
    assert lines[1] == "2026-09-21T14:13:20.001+00:00 1 step 0 of worker 1\n"
    assert [line.split(" ", 2)[2] for line in lines] == [*BOTH, "the last line has no end\n"]
    assert name == f'attachment; filename="supernova-{scene.job.pk}-rank-0-to-1.log"'


def test_only_workers_of_the_job_are_shown_together(scene: Scene, gang: list[Path], browser_of) -> None:
    client, args = browser_of(scene.people.bob), [scene.job.pk]
    for ranks in ("0-2", "2", "1-0", "0-99999"):
        for name in ("job_log_stream", "job_log_piece", "job_log_search", "job_log_raw"):
            answer = client.get(reverse(name, args=args), {"ranks": ranks, "q": "x", "end": "0"})
            assert answer.status_code == 404, (ranks, name)
    page = client.get(reverse("job_log", args=args)).content.decode()
    assert '<option value="0-1" selected>All workers</option>' in page
    assert client.get(reverse("job_log_piece", args=args), {"ranks": "0-1", "end": "7"}).status_code == 400
