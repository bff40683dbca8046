"""The log follower opens, queues and closes streams of pod logs. The tests control the API server's answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from scheduling.backends.kubernetes import logs, objects
from scheduling.backends.kubernetes.api import Api, Missing, Refused, Unreachable
from scheduling.backends.kubernetes.log_stream import LogContext, files_of
from scheduling.backends.kubernetes.logs import Follower
from tests.waiting import wait_for

STAMP = "2026-11-21T19:03:{:02d}.{:09d}Z "


@dataclass
class Speech:
    """The log of one pod, as the kubelet stores it. A stream that follows the log stays open until `end` is called."""

    lines: list[bytes] = field(default_factory=list)
    open: list[Text] = field(default_factory=list)
    trouble: Exception | None = None
    is_over: bool = False

    def say(self, text: str) -> None:
        line = STAMP.format(len(self.lines) % 60, len(self.lines)).encode() + text.encode() + b"\n"
        self.lines.append(line)
        for stream in self.open:
            stream.pieces_to_come.put(line)

    def end(self, error: Exception | None = None) -> None:
        for stream in list(self.open):
            stream.pieces_to_come.put(error)


class Text:
    """Stands in for the object that `Api.text` yields: one open stream of a pod's log."""

    def __init__(self) -> None:
        self.pieces_to_come: queue.Queue[bytes | Exception | None] = queue.Queue()

    def pieces(self) -> Iterator[bytes]:
        while (piece := self.pieces_to_come.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def cut(self) -> None:
        self.pieces_to_come.put(Unreachable("cut"))


class Server:
    """An API server that only answers requests for pod logs; `asked` records the requests."""

    def __init__(self) -> None:
        self.speeches: dict[str, Speech] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.lock = threading.Lock()

    @contextmanager
    def text(self, path: str, *, read_seconds: float, **query: str) -> Iterator[Text]:
        name = path.split("/")[-2]
        with self.lock:
            self.asked.append((name, query))
            speech = self.speeches[name]
            if speech.trouble:
                raise speech.trouble
            stream = Text()
            for line in speech.lines:
                if line[:19].decode() >= query.get("sinceTime", "")[:19]:
                    stream.pieces_to_come.put(line)
            if query["follow"] == "false" or speech.is_over:
                stream.pieces_to_come.put(None)
            speech.open.append(stream)
        try:
            yield stream
        finally:
            with self.lock:
                speech.open.remove(stream)

    def followed(self) -> set[str]:
        with self.lock:
            return {name for name, speech in self.speeches.items() if speech.open}


@dataclass
class Stage:
    """A log follower with its API server, and methods that report pods to the follower."""

    server: Server
    follower: Follower
    folder: Path
    steps: list[tuple[int, int, float]]

    def pod(
        self, job: int, state: str = "running", *, node: str = "n", going: bool = False, rank: int = 0
    ) -> Any:
        began = {"startedAt": "2026-11-21T19:03:00Z", "containerID": "containerd://x"}
        about: dict[str, Any] = {
            "uid": f"uid-{job}-{rank}",
            "name": f"pod-{job}-{rank}",
            "namespace": "fairlot-1",
            "labels": {objects.JOB: str(job)},
            "annotations": {objects.EPOCH: "1", objects.INDEX: str(rank)},
        }
        if going:
            about["deletionTimestamp"] = "2026-11-21T19:04:00Z"
        status = {"containerStatuses": [{"state": {state: began}}]}
        return {"metadata": about, "spec": {"nodeName": node}, "status": status}

    def enter(self, job: int, *said: str, **pod: Any) -> Speech:
        speech = self.server.speeches[f"pod-{job}-{pod.get('rank', 0)}"] = Speech()
        for text in said:
            speech.say(text)
        self.follower.put(self.pod(job, **pod))
        return speech

    def log(self, job: int, rank: int = 0) -> str:
        path = files_of(self.folder, job).log(rank)
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, job: int, text: str) -> None:
        wait_for(lambda: self.log(job) == text, what=lambda: f"{text!r}, not {self.log(job)!r}")


Setting = Callable[..., Stage]


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr(logs, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(logs, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(logs, "AGAIN_SECONDS", 0.05)
    stages: list[Stage] = []

    def make(streams: int, limit: int = 1 << 20) -> Stage:
        server = Server()
        steps: list[tuple[int, int, float]] = []
        context = LogContext(
            cast(Api, server),
            tmp_path,
            limit,
            lambda job_id: r"step (\d+)",
            lambda job_id, epoch, count, at: steps.append((job_id, epoch, count)),
            silence=60.0,
        )
        stages.append(Stage(server, Follower(context, streams=streams), tmp_path, steps))
        return stages[-1]

    yield make
    for stage in stages:
        stage.follower.stop()


def test_a_stream_that_breaks_off_is_gone_on_with_and_no_line_comes_twice(setting: Setting) -> None:
    stage = setting(streams=2)
    speech = stage.enter(1, "one", "two")
    stage.wait_for_log(1, "one\ntwo\n")
    speech.end(Unreachable("the connection was reset"))
    wait_for(lambda: len(stage.server.asked) >= 2 and speech.open, what="it is followed again")
    assert stage.server.asked[1][1]["sinceTime"] == "2026-11-21T19:03:01Z"
    speech.say("three")
    stage.wait_for_log(1, "one\ntwo\nthree\n")


def test_an_ended_worker_is_read_to_its_end_and_never_asked_again(setting: Setting) -> None:
    stage = setting(streams=1)
    speech = stage.enter(1, "one", "step 7")
    stage.wait_for_log(1, "one\nstep 7\n")
    speech.say("last")
    speech.is_over = True
    stage.follower.put(stage.pod(1, "terminated"))
    speech.end()
    wait_for(lambda: not stage.follower._queued, what="it is read to its end")
    asked = len(stage.server.asked)
    stage.follower.put(stage.pod(1, "terminated"))
    stage.follower.gone("uid-1-0")
    assert not stage.follower._queued
    assert len(stage.server.asked) == asked
    assert stage.log(1) == "one\nstep 7\nlast\n"
    assert stage.steps[-1] == (1, 1, 7.0)


def test_workers_beyond_the_streams_are_fetched_in_rotation(setting: Setting) -> None:
    stage = setting(streams=2)
    speeches = {job: stage.enter(job, f"hello {job}") for job in range(1, 11)}
    for job in speeches:
        stage.wait_for_log(job, f"hello {job}\n")
    for job, speech in speeches.items():
        speech.say(f"again {job}")
    for job in speeches:
        stage.wait_for_log(job, f"hello {job}\nagain {job}\n")
    follows = {name for name, query in stage.server.asked if query["follow"] == "true"}
    assert len(follows) == 2


def test_a_stopping_worker_takes_the_place_of_one_that_is_not(setting: Setting) -> None:
    stage = setting(streams=1)
    first = stage.enter(1, "one")
    stage.wait_for_log(1, "one\n")
    last = stage.enter(2, "two")
    stage.wait_for_log(2, "two\n")
    stage.follower.put(stage.pod(2, going=True))
    wait_for(
        lambda: ("pod-2-0", "true") in [(name, query["follow"]) for name, query in stage.server.asked],
        what="it is followed",
    )
    last.say("told to stop")
    stage.wait_for_log(2, "two\ntold to stop\n")
    first.say("meanwhile")
    stage.wait_for_log(1, "one\nmeanwhile\n")
    stage.server.speeches["pod-2-0"].trouble = Missing(404, {})
    last.end()
    stage.follower.gone("uid-2-0")
    wait_for(lambda: "uid-2-0" not in stage.follower._queued, what="it is read to its end")


def test_a_kubelet_that_does_not_answer_delays_no_other_worker(setting: Setting) -> None:
    stage = setting(streams=1)
    dead = Refused(502, {"message": "dial tcp: no route to host"})
    speeches = []
    for job in range(1, 31):
        stage.server.speeches[f"pod-{job}-0"] = speech = Speech(trouble=dead)
        speeches.append(speech)
        stage.follower.put(stage.pod(job, node="dead"))
    stage.enter(99, "alive", node="alive")
    stage.wait_for_log(99, "alive\n")
    for number, speech in enumerate(speeches):
        speech.say(f"back {number}")
        speech.trouble = None
    for number in range(30):
        stage.wait_for_log(number + 1, f"back {number}\n")


def test_only_the_api_server_knows_that_a_pod_is_gone(setting: Setting) -> None:
    stage = setting(streams=1)
    nothing = Missing(404, {"message": "the server could not find the requested resource"})
    stage.server.speeches["pod-1-0"] = speech = Speech(trouble=nothing)
    stage.follower.put(stage.pod(1))
    wait_for(lambda: len(stage.server.asked) > 2, what="it is asked for again")
    speech.say("here")
    speech.trouble = None
    stage.wait_for_log(1, "here\n")
    speech.trouble = Missing(404, {"message": 'pods "pod-1-0" not found'})
    speech.end(Unreachable("the connection was reset"))
    wait_for(lambda: not stage.follower._queued, what="it is given up")


def test_a_log_that_cannot_be_kept_ends_no_other(setting: Setting) -> None:
    stage = setting(streams=1)
    (stage.folder / "1").write_text("no folder")
    stage.enter(1, "one")
    stage.enter(2, "two")
    stage.wait_for_log(2, "two\n")
    (stage.folder / "1").unlink()
    stage.wait_for_log(1, "one\n")


def test_a_full_log_is_followed_on_for_progress_alone(setting: Setting) -> None:
    stage = setting(streams=2, limit=20)
    first = stage.enter(1, "x" * 30, "step 1")
    other = stage.enter(1, "y" * 30, rank=1)
    wait_for(lambda: "uid-1-1" not in stage.follower._queued, what="rank 1 is not read any more")
    other.say("more")
    first.say("step 2")
    first.end()
    wait_for(lambda: (1, 1, 2.0) in stage.steps, what=lambda: str(stage.steps))
    assert stage.log(1).startswith("x" * 20 + "\n[fairlot] output is cut here")
    assert "more" not in stage.log(1, rank=1)


def test_a_follower_that_is_stopped_writes_no_more(setting: Setting) -> None:
    stage = setting(streams=2)
    speech = stage.enter(1, "one")
    stage.wait_for_log(1, "one\n")
    stage.follower.stop()
    assert not stage.server.followed()
    speech.say("two")
    stage.follower.put(stage.pod(2))
    assert stage.log(1) == "one\n"
