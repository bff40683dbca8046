"""Tests of jobs with endpoints in real containers: a real kubelet probes the containers, and a preStop hook delays the
SIGTERM that ends a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.backends.base import End, Endpoint, Gang, Observation, Phase
from tests.cluster.api import PODS, Api
from tests.cluster.backend_rig import Rig
from tests.cluster.images import PYTHON
from tests.cluster.realnode import RealNode
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# A server that is not ready until a request of /turn.
SERVER = """
import http.server, os, signal, sys, threading
well = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/turn":
            well.clear() if well.is_set() else well.set()
        self.send_response(200 if well.is_set() or self.path == "/turn" else 503)
        self.end_headers()
    def log_message(self, *args): pass
def stop(*_):
    print("told to stop", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def rig(fairlot: Path, admin: Api, tenant: str, tmp_path: Path, real_node: RealNode) -> Iterator[Rig]:
    made = Rig(admin, fairlot, tenant, tmp_path)
    with made.watching():
        yield made


def when(rig: Rig, gang: Gang, *, ready: bool) -> Observation:
    def look() -> Observation | None:
        seen = rig.seen.get(gang.token)
        return seen if seen and seen.address and (seen.ready_age is not None) == ready else None

    seen = wait_for(look, what=lambda: f"ready: {ready}, not {rig.seen.get(gang.token)}; {rig.pods(gang)}")
    assert seen is not None
    return seen


def turn(rig: Rig, gang: Gang) -> None:
    [pod] = rig.pods(gang)
    path = f"{PODS.format(rig.namespace)}/{pod['metadata']['name']}:8000/proxy/turn"
    # Until the program listens, the API server answers this proxy request itself, with an error.
    wait_for(lambda: rig.admin.http.get(path).status_code == 200, what="it has turned")


def test_a_kubelet_reports_when_a_program_is_ready_and_it_leaves_the_endpoints_before_sigterm(
    rig: Rig, real_node: RealNode
) -> None:
    gang = rig.start(
        rig.gang(
            real_node.name,
            command=["python3", "-c", SERVER],
            environment_name=PYTHON,
            endpoint=Endpoint(port=8000, path="/health", period_seconds=1, failures=1),
        )
    )
    assert when(rig, gang, ready=False).phase is Phase.RUNNING
    wait_for(
        lambda: any("readiness probe fails" in event.text for event in rig.cluster_events),
        what="why it is not ready stands on its time line",
    )
    for ready in (True, False, True):
        turn(rig, gang)
        when(rig, gang, ready=ready)
    rig.stop(gang)
    left = when(rig, gang, ready=False)
    assert left.phase is Phase.RUNNING, "nobody is sent there, and it goes on"
    ended = rig.wait(gang)
    assert ended.end is End.STOPPED
    log = rig.backend.read_log(job_id=gang.job_id, rank=0, offset=0, limit=10_000).data.decode()
    assert log == "told to stop\n"
    assert not [event.text for event in rig.cluster_events if "PreStop" in event.text]
