"""The local backend probes the ports of real programs, and Fairlot records the results."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.backends.base import Endpoint, Gang, Observation, Phase
from scheduling.backends.local.files import read_json
from scheduling.core.event_texts import text_of
from scheduling.models import Job, Lease
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.local_rig import Rig, until
from tests.scheduling.world import World, start, world

# Answers with HTTP status 503 while the file `busy` is in its folder, and does not answer while the file `deaf` is
# there.
SERVER = """
import http.server, os, pathlib, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while pathlib.Path("deaf").exists():
            time.sleep(0.01)
        self.send_response(503 if pathlib.Path("busy").exists() else 200)
        self.end_headers()
        self.wfile.write(self.path.encode())
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
print("listening", os.environ["FAIRLOT_PORT"])
server.serve_forever()
"""


def serving(rig: Rig, *, path: str = "/health", failures: int = 1, **changes: object) -> Gang:
    endpoint = Endpoint(port=8000, path=path, period_seconds=1, failures=failures)
    return rig.start(rig.python(SERVER, endpoint=endpoint, **changes))


def folder(rig: Rig, gang: Gang) -> Path:
    return rig.files(gang.job_id).folder / "work" / "rank-0"


def seen_when(rig: Rig, gang: Gang, true: Callable[[Observation], bool], what: str) -> Observation:
    def look() -> Observation | None:
        seen = rig.look(gang)
        return seen if seen is not None and true(seen) else None

    seen = until(look, what)
    assert seen is not None
    return seen


def test_a_program_is_ready_when_it_answers_and_not_when_it_says_that_it_is_busy(rig: Rig) -> None:
    gang = serving(rig)
    ready = seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready")
    assert ready.phase is Phase.RUNNING
    with urllib.request.urlopen(f"http://{ready.address}/health?deep", timeout=60) as answer:
        assert answer.read() == b"/health?deep"
    (folder(rig, gang) / "busy").touch()
    busy = seen_when(
        rig,
        gang,
        lambda seen: seen.why_not_ready == "the answer to GET /health has HTTP status 503",
        "not ready",
    )
    assert busy.ready_age is None
    assert busy.address == ready.address
    (folder(rig, gang) / "busy").unlink()
    seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready again")


def test_one_failure_of_several_allowed_changes_nothing(rig: Rig) -> None:
    gang = serving(rig, failures=50)
    seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready")
    (folder(rig, gang) / "busy").touch()
    begun = rig.log().count("listening")
    beats = {str(read_json(rig.files().beat))}
    until(lambda: len(beats) > 4 or beats.add(str(read_json(rig.files().beat))), "some seconds of failures")
    seen = rig.look(gang)
    assert seen is not None
    assert seen.ready_age is not None
    assert begun == 1


def test_a_program_that_does_not_answer_in_time_is_not_ready(rig: Rig) -> None:
    gang = serving(rig)
    seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready")
    (folder(rig, gang) / "deaf").touch()
    deaf = seen_when(
        rig, gang, lambda seen: seen.why_not_ready.endswith("gave no answer within 1 s"), "not ready"
    )
    assert deaf.ready_age is None
    (folder(rig, gang) / "deaf").unlink()
    seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready again")


def test_without_a_path_a_connection_is_enough_and_before_it_there_is_a_reason(rig: Rig) -> None:
    silent = rig.start(
        rig.gang("sleep 600", endpoint=Endpoint(port=8000, path="", period_seconds=1, failures=1))
    )
    seen = seen_when(rig, silent, lambda seen: "Connection refused" in seen.why_not_ready, "a reason")
    assert seen.ready_age is None
    other = serving(rig, path="", job=2)
    ready = seen_when(rig, other, lambda seen: seen.ready_age is not None, "ready")
    assert ready.address != seen.address  # both programs asked for port 8000 of this machine


def test_a_frozen_program_is_not_ready_and_answers_at_the_same_port_once_thawed(rig: Rig) -> None:
    gang = serving(rig)
    ready = seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready")
    rig.freeze(gang)
    frozen = rig.wait(gang, Phase.FROZEN)
    assert frozen.ready_age is None
    again = serving_again(rig, gang)
    thawed = seen_when(rig, again, lambda seen: seen.ready_age is not None, "ready again")
    assert thawed.address == ready.address
    assert rig.log().count("listening") == 1


def serving_again(rig: Rig, gang: Gang) -> Gang:
    again = rig.python(SERVER, epoch=gang.epoch + 1, endpoint=gang.endpoint)
    rig.backend.thaw(again)
    return again


def test_the_port_is_free_again_after_the_end(rig: Rig) -> None:
    gang = serving(rig)
    ready = seen_when(rig, gang, lambda seen: seen.ready_age is not None, "ready")
    rig.stop(gang)
    ended = rig.wait(gang)
    assert ended.ready_age is None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(ready.address.rpartition(":")[2])))


# --- what is recorded --------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def answer(lab: World, job: Job, **facts: object) -> Lease:
    lab.see(lab.lease(job), Phase.RUNNING, address="127.0.0.1:20000", **facts)
    return lab.lease(job)


@pytest.mark.django_db
def test_readiness_lands_on_the_lease_and_each_change_on_the_time_line(lab: World) -> None:
    job = start(lab, port=8000)
    lease = answer(lab, job, why_not_ready="port 20000: Connection refused")
    assert (lease.ready_since, lease.why_not_ready) == (None, "port 20000: Connection refused")
    for _ in range(3):
        lease = answer(lab, job, ready_age=0.0)
    job.refresh_from_db()
    assert job.first_ready_at is not None
    assert job.first_ready_at == lease.ready_since
    assert lease.why_not_ready == ""
    assert list(Lease.objects.ready()) == [lease]
    for _ in range(3):
        answer(lab, job, why_not_ready="the answer to GET / has HTTP status 500")
    assert not Lease.objects.ready().exists()
    answer(lab, job, ready_age=0.0)
    told = [text_of(event) for event in job.events.filter(kind__in=["ready", "unready"])]
    assert told == [
        "Ready; the program answers at 127.0.0.1:20000",
        "No longer ready: the answer to GET / has HTTP status 500",
        "Ready; the program answers at 127.0.0.1:20000",
    ]
    first = job.first_ready_at
    job.refresh_from_db()
    assert job.first_ready_at == first


@pytest.mark.django_db
def test_a_stopping_replica_is_not_ready_whatever_is_observed(lab: World) -> None:
    job = start(lab, port=8000)
    lease = answer(lab, job, ready_age=0.0)
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.STOPPING)
    assert not Lease.objects.ready().exists()
    answer(lab, job)
    assert not job.events.filter(kind="unready").exists()


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"port": 80}, "port", "must be a whole number from 1024 to 65535"),
        ({"readiness_path": "/health"}, "readiness_path", "needs a port"),
        ({"port": 8000, "readiness_path": "health"}, "readiness_path", "must begin with /"),
        ({"port": 8000, "readiness_path": "/a b"}, "readiness_path", "must not contain spaces"),
        ({"port": 8000, "readiness_path": "/a\r\nX: y"}, "readiness_path", "must begin with /"),
        ({"port": 8000, "variables": {"PORT": "1"}}, "port", "must not contain PORT"),
        ({"port": 8000, "readiness_failures": 0}, "readiness_failures", "from 1 to 100"),
    ],
)
def test_an_invalid_request_is_refused(fields: dict[str, object], field: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({"name": "x", "command": "x"} | fields)
    assert said in refused.value.problems[field]
