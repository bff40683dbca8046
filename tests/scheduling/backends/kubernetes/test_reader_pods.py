"""Readers of files start, are used, and are removed, whatever their pods do. The program is a real process; a small
stand-in of an API server is enough for its pod, and tests/cluster has a real one."""

from __future__ import annotations

import copy
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from scheduling.backends.base import (
    BackendError,
    FilesElsewhere,
    FilesNotReady,
    FileUnreadable,
    NoSuchFile,
    Unanswered,
)
from scheduling.backends.kubernetes import backend as kubernetes_backend
from scheduling.backends.kubernetes import reader_program
from scheduling.backends.kubernetes.api import Api, Missing, Refused, Taken
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.backends.kubernetes.events import job_of_pod
from scheduling.backends.kubernetes.objects import JOB
from scheduling.backends.kubernetes.reader_pods import (
    MOST_IN_TEAM,
    NotReachable,
    Reader,
    Readers,
    reader_name,
)
from tests.scheduling.reader_process import SECRET, free_port, program, reader_of, variables

PATH = f"/api/v1/namespaces/n/pods/{reader_name(7)}"


class Server(Api):
    """Keeps pods by their path. `refusal`: what it says to a new pod."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.refusal: Refused | None = None

    def get(self, path: str, **query: Any) -> Any:
        if path.endswith("/pods"):
            return {"items": list(self.pods.values()), "metadata": {"resourceVersion": "1"}}
        if path not in self.pods:
            raise Missing(404, {"message": path})
        return self.pods[path]

    def create(self, path: str, thing: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        place = f"{path}/{thing['metadata']['name']}"
        if place in self.pods:
            raise Taken(409, {"reason": "AlreadyExists"})
        about = {"uid": f"{time.monotonic()}", "namespace": "n", "creationTimestamp": now()}
        self.pods[place] = {"status": {"phase": "Pending"}} | thing | {"metadata": about | thing["metadata"]}
        return self.pods[place]

    def delete(self, path: str, *, uid: str, **query: Any) -> Any:
        assert self.pods[path]["metadata"]["uid"] == uid
        del self.pods[path]

    def say(self, **status: Any) -> None:
        self.pods[PATH]["status"] = {"phase": "Pending"} | status


def now(ago: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) - ago).isoformat()


READY = {"type": "Ready", "status": "True", "lastTransitionTime": now()}


@pytest.fixture
def server() -> Server:
    return Server()


def made(server: Server, folder: Path, readers: Readers, claim: str = "claim") -> KubernetesBackend:
    return KubernetesBackend(
        api=lambda: server, owner="ours", namespace_of=lambda job_id: "n", logs=folder, log_limit_bytes=1,
        log_streams=1, checkpoint_claim=claim, readers=readers,
    )  # fmt: skip


@pytest.fixture
def readers() -> Readers:
    return Readers(image="python", port=free_port(), secret_of=lambda name, nonce: SECRET)


@pytest.fixture
def backend(server: Server, tmp_path: Path, readers: Readers) -> KubernetesBackend:
    return made(server, tmp_path, readers)


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"state": {"waiting": {"reason": reason, "message": message}}}]


def test_a_page_says_what_the_reader_waits_for_until_it_is_ready(
    server: Server, backend: KubernetesBackend, readers: Readers
) -> None:
    assert not backend.files_are_ready(job_id=7)
    with pytest.raises(FilesNotReady):
        backend.list_files(job_id=7, path="", limit=9)
    backend.start_reader(job_id=7)
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    for status, words in (
        ({}, "is starting"),
        ({"conditions": [unplaced]}, "0/3 nodes are available"),
        ({"containerStatuses": waiting("ContainerCreating")}, "is starting"),
    ):
        server.say(**status)
        with pytest.raises(FilesNotReady, match=words):
            backend.files_are_ready(job_id=7)
    server.say(phase="Running", podIP="127.0.0.1", conditions=[READY])
    assert backend.files_are_ready(job_id=7)
    server.pods.clear()
    assert backend.files_are_ready(job_id=7), "it is believed for some seconds"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"containerStatuses": waiting("ErrImagePull", "no such image")}, "no such image"),
        ({"containerStatuses": waiting("CreateContainerConfigError", "no subPath")}, "no subPath"),
        ({"phase": "Failed", "message": "evicted"}, "evicted"),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]},
            "OOMKilled",
        ),
    ],
)
def test_a_reader_that_cannot_start_leads_to_the_commands_and_is_not_started_again_at_once(
    server: Server, backend: KubernetesBackend, status: dict[str, Any], words: str
) -> None:
    backend.start_reader(job_id=7)
    server.say(**status)
    with pytest.raises(FilesElsewhere, match=words) as told:
        backend.files_are_ready(job_id=7)
    assert "kubectl" in told.value.how
    backend.stop_readers(unless=lambda job: True)
    assert PATH in server.pods
    server.pods[PATH]["metadata"]["creationTimestamp"] = now(timedelta(hours=1))
    backend.stop_readers(unless=lambda job: True)
    assert not server.pods
    assert not backend.files_are_ready(job_id=7), "it may be tried again"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed", "reason": "DeadlineExceeded"},
        {"phase": "Failed", "reason": "Evicted"},
    ],
)
def test_a_reader_that_has_ended_is_replaced(
    server: Server, backend: KubernetesBackend, status: dict[str, Any]
) -> None:
    assert backend.start_reader(job_id=7)
    first = server.pods[PATH]["metadata"]["uid"]
    assert not backend.start_reader(job_id=7)
    assert server.pods[PATH]["metadata"]["uid"] == first, "one is enough"
    server.say(**status)
    assert not backend.files_are_ready(job_id=7)
    backend.start_reader(job_id=7)
    assert server.pods[PATH]["metadata"]["uid"] != first


def test_readers_are_bounded_and_refusals_lead_to_the_commands(
    server: Server, backend: KubernetesBackend
) -> None:
    server.refusal = Refused(403, {"message": "exceeded quota"})
    with pytest.raises(FilesElsewhere, match="exceeded quota"):
        backend.start_reader(job_id=7)
    server.refusal = Refused(503, {"message": "away"})
    with pytest.raises(Unanswered):
        backend.start_reader(job_id=7)
    server.refusal = None
    for job in range(100, 100 + MOST_IN_TEAM):
        backend.start_reader(job_id=job)
    with pytest.raises(FilesElsewhere, match="Try again in some minutes"):
        backend.start_reader(job_id=7)
    server.pods.popitem()
    backend.start_reader(job_id=7)


def test_only_own_readers_are_used_and_readers_are_no_gangs(
    server: Server, backend: KubernetesBackend
) -> None:
    backend.start_reader(job_id=7)
    labels = server.pods[PATH]["metadata"]["labels"]
    assert "fairlot.io/owner" not in labels
    assert job_of_pod(reader_name(7)) is None, "its events are not those of the job"
    labels["fairlot.io/reader"] = "others"
    with pytest.raises(FilesElsewhere, match="does not belong to this Fairlot"):
        backend.files_are_ready(job_id=7)


def test_a_pod_that_only_looks_like_a_reader_stops_no_cleaning(
    server: Server, backend: KubernetesBackend
) -> None:
    backend.start_reader(job_id=7)
    forged = copy.deepcopy(server.pods[PATH])
    del forged["metadata"]["labels"][JOB]
    forged["metadata"]["name"] += "-forged"
    server.pods = {PATH + "-forged": forged, **server.pods}
    server.say(phase="Succeeded")
    backend.stop_readers(unless=lambda job: True)
    assert PATH not in server.pods


def test_without_an_image_or_a_claim_there_are_no_readers(server: Server, tmp_path: Path) -> None:
    for claim, image in (("", "python"), ("claim", "")):
        backend = made(server, tmp_path, Readers(image=image), claim)
        for ask in (
            lambda backend=backend: backend.files_are_ready(job_id=7),
            lambda backend=backend: backend.open_file(job_id=7, path="checkpoint/x"),
        ):
            with pytest.raises(FilesElsewhere):
                ask()
    assert not server.pods


def test_a_reader_that_ended_a_moment_ago_can_be_started_again(
    server: Server, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.start_reader(job_id=7)
    server.say(phase="Running", podIP="127.0.0.1", conditions=[READY])
    assert backend.files_are_ready(job_id=7)
    with pytest.raises(FilesElsewhere, match="FAIRLOT_PORTAL_FROM"):  # the pod runs, and nothing answers
        backend.list_files(job_id=7, path="", limit=9)
    assert backend.files_are_ready(job_id=7)
    server.say(phase="Succeeded")
    with pytest.raises(FilesNotReady):
        backend.list_files(job_id=7, path="", limit=9)
    assert not backend.files_are_ready(job_id=7)
    monkeypatch.setattr(kubernetes_backend, "MOST_KNOWN_READERS", 0)
    backend.start_reader(job_id=7)
    server.say(phase="Running", podIP="::1", conditions=[READY])
    assert backend.files_are_ready(job_id=7)


# --- the program -------------------------------------------------------------------------------------


def test_the_program_wants_its_secret_and_answers_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "x").write_bytes(b"0123456789")
    with reader_of(tmp_path) as reader:
        with pytest.raises(NotReachable, match="401"):
            Reader(reader.address, "wrong").list_files("", "", 9)
        with pytest.raises(NotReachable, match="400"):
            reader._ask("nothing")
        with pytest.raises(NotReachable, match="400"):
            reader._ask("list", limit="many")
        with pytest.raises(NoSuchFile, match="There is no such file"):
            reader.open_file("checkpoint/y", 0)
        for path in ("../checkpoint/x", "/etc/passwd", "checkpoint//x", "checkpoint/./x", "home/x"):
            with pytest.raises(NoSuchFile):
                reader.open_file(path, 0)
        with pytest.raises(FileUnreadable, match="This is a folder"):
            reader.open_file("checkpoint", 0)
        opened = reader.open_file("checkpoint/x", 4)
        assert (opened.size, opened.read(2), opened.read(100), opened.read(1)) == (10, b"45", b"6789", b"")
        opened.close()
        with socket.create_connection(("127.0.0.1", int(reader.address.rpartition(":")[2]))) as plain:
            plain.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.1 204")


def test_the_program_ends_when_nobody_reads_and_not_while_somebody_does(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with open(tmp_path / "checkpoint" / "large", "wb") as file:
        file.truncate(1 << 30)
    given = variables(tmp_path, free_port(), idle_seconds=1)
    with program([sys.executable, "-c", reader_program.script()], given) as it:
        opened = Reader(f"127.0.0.1:{given['PORT']}", SECRET).open_file("checkpoint/large", 0)
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            assert opened.read(1 << 16)
            time.sleep(0.05)  # a slow reader, longer than the program may be idle
        assert it.poll() is None
        opened.close()
        assert it.wait(timeout=60) == 0


@pytest.fixture
def broken() -> Iterator[Callable[[str, bytes], Reader]]:
    """Yields a function that makes a server with one answer: a header that describes a file, and a body."""
    servers = []

    def make(about: str, body: bytes) -> Reader:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header(reader_program.DESCRIPTION, about)
                self.send_header("Content-Length", str(len(body) + 5 * (about != "")))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Says nothing."""

        server = HTTPServer(("127.0.0.1", 0), Answer)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return Reader(f"127.0.0.1:{server.server_port}", "")

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_an_answer_that_breaks_off_or_makes_no_sense_is_an_error_and_no_file(
    broken: Callable[[str, bytes], Reader],
) -> None:
    for body in (
        b"",
        b"[]",
        b'{"entries": [["..", "file", 1, 1, ""]], "after": "", "is_cut": false}',
        b'{"a',
        b"[" * 100_000,
        b'{"entries": [["a", "file", Infinity, 1, ""]], "after": "", "is_cut": false}',
        b'{"entries": [["a", "file", 1, NaN, ""]], "after": "", "is_cut": false}',
        b'{"entries": [%s], "after": "", "is_cut": false}' % b", ".join([b'["a", "file", 1, 1, ""]'] * 10),
    ):
        with pytest.raises(FileUnreadable):
            broken("", body).list_files("", "", 9)
    for about in (
        "{}",
        '{"size": 1, "stored": 1, "age": 0, "version": "a\\" b", "identity": "1"}',
        '{"size": 1, "stored": 1, "age": 0, "version": 7, "identity": "1"}',
        '{"size": 1, "stored": 1, "age": 1e300, "version": "1", "identity": "1"}',
    ):
        with pytest.raises(FileUnreadable):
            broken(about, b"x").open_file("checkpoint/x", 0)
    good = '{"size": 9, "stored": 9, "age": 0, "version": "a-1", "identity": "1"}'
    opened = broken(good, b"half").open_file("checkpoint/x", 0)
    with pytest.raises(BackendError, match="broke off"):
        list(iter(lambda: opened.read(100), b""))
    opened.close()
