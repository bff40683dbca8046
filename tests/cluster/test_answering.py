"""Tests of jobs with endpoints: Kubernetes probes the workers' readiness, and the watcher reports their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduling.backends.base import Endpoint, Gang, Observation, Phase
from tests.cluster.api import Api
from tests.cluster.backend_rig import Rig
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ENDPOINT = Endpoint(port=8000, path="/health", period_seconds=2, failures=4)


@pytest.fixture
def rig(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(admin, fairlot, tenant, tmp_path)
    with made.watching():
        yield made


def serving(rig: Rig, *nodes: str, **changes: Any) -> Gang:
    return rig.start(rig.gang(*nodes, endpoint=ENDPOINT, **changes))


def when(rig: Rig, gang: Gang, *, ready: bool) -> Observation:
    def look() -> Observation | None:
        seen = rig.seen.get(gang.token)
        return seen if seen and seen.address and (seen.ready_age is not None) == ready else None

    seen = wait_for(look, what=lambda: f"ready: {ready}, not {rig.seen.get(gang.token)}")
    assert seen is not None
    return seen


def test_a_ready_pod_is_reported_with_its_address(rig: Rig, nodes: list[str]) -> None:
    gang = serving(rig, nodes[0])
    seen = when(rig, gang, ready=True)
    [pod] = rig.pods(gang)
    assert seen.phase is Phase.RUNNING
    assert seen.address == f"{pod['status']['podIP']}:8000"
    main = pod["spec"]["containers"][0]
    probe = main["readinessProbe"]
    assert probe["httpGet"]["path"] == "/health"
    assert (probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]) == (2, 2, 4)
    assert {"name": "PORT", "value": "8000"} in main["env"]


def test_a_running_pod_is_reported_as_not_ready_and_when_that_changes(rig: Rig, nodes: list[str]) -> None:
    gang = serving(rig, nodes[0], environment_name="unready/image")
    assert when(rig, gang, ready=False).phase is Phase.RUNNING
    for ready in (True, False, True):
        rig.annotate(gang, ready="true" if ready else "false")
        when(rig, gang, ready=ready)


def test_a_gang_is_as_ready_as_its_first_worker(rig: Rig, nodes: list[str]) -> None:
    gang = serving(rig, nodes[0], nodes[1])
    seen = when(rig, gang, ready=True)
    [first] = [pod for pod in rig.pods(gang) if pod["metadata"]["name"].split("-")[2] == "0"]
    assert seen.address == f"{first['status']['podIP']}:8000"


def test_a_stopping_pod_is_not_ready_during_its_grace(rig: Rig, nodes: list[str]) -> None:
    gang = serving(rig, nodes[0], grace_seconds=20.0)
    when(rig, gang, ready=True)
    rig.annotate(gang, stop_after="3600")
    rig.stop(gang, grace=20.0)
    when(rig, gang, ready=False)
    [pod] = rig.pods(gang)
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 23, "its own grace, and the time to be forgotten"
    rig.annotate(gang, stop_after="0")
    assert rig.wait(gang).ready_age is None


def test_a_worker_without_a_port_is_neither_ready_nor_unready(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    seen = rig.wait(gang, Phase.RUNNING)
    assert (seen.ready_age, seen.address) == (None, "")
    [pod] = rig.pods(gang)
    assert "readinessProbe" not in pod["spec"]["containers"][0]
