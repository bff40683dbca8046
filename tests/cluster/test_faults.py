"""Tests that components of the test cluster can crash, hang and come back, and that none of them outlives a test
run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from embedded.processes import working_in
from tests.cluster.api import NODES
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobs import Work
from tests.cluster.nodes import condition, usable
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize("victim", ["apiserver", "etcd"])
def test_objects_survive_a_crash(plane: ControlPlane, work: Work, nodes: list[str], victim: str) -> None:
    job = work.create("survivor", pods=2)
    work.start(job, nodes[7])
    before = {pod["metadata"]["uid"] for pod in work.wait_for_pods("survivor", 2, "Running")}
    component = getattr(plane, victim)
    component.kill()
    assert not component.ready()
    component.start()
    wait_for(plane.apiserver.ready, what="the API server is ready")
    assert {pod["metadata"]["uid"] for pod in work.pods("survivor")} == before
    # The other components reconnect without a restart: a new Job runs to its end.
    later = work.create("later", behaviour={"run-for": "0.2"})
    work.start(later, nodes[7])
    work.wait_for_condition("later", "Complete")
    assert plane.controller_manager.running
    assert plane.scheduler.running


def test_a_frozen_api_server_answers_nobody_until_it_thaws(plane: ControlPlane, work: Work) -> None:
    plane.apiserver.freeze()
    try:
        # The answer times out, or the TLS handshake where a new connection is needed.
        with pytest.raises(httpx.TimeoutException):
            work.api.http.get(work.jobs, timeout=1)
    finally:
        plane.apiserver.thaw()
    assert work.api.items(work.jobs) == []


def test_without_a_controller_manager_a_started_job_has_no_pods_until_it_is_back(
    plane: ControlPlane, work: Work, nodes: list[str]
) -> None:
    plane.controller_manager.kill()
    job = work.create("patient", behaviour={"run-for": "0.2"})
    work.start(job, nodes[9])
    assert "startTime" not in work.read("patient")["status"]
    assert not work.pods("patient")
    plane.controller_manager.start()
    work.wait_for_condition("patient", "Complete")


def test_no_process_outlives_the_one_that_started_it_even_when_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", folder, "1"],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout
        assert starter.stdout.readline().strip().endswith("test-admin.kubeconfig")
        assert len(list(working_in(folder))) == 5  # etcd, three components of Kubernetes, and kwok
        os.kill(starter.pid, signal.SIGKILL)
    wait_for(lambda: not list(working_in(folder)), what="every component is gone")


def test_a_node_that_is_not_ready_gets_no_pods_until_it_is(
    plane: ControlPlane, work: Work, nodes: list[str]
) -> None:
    path = f"{NODES}/{nodes[12]}"
    plane.admin.merge(path, {"metadata": {"annotations": {"test.fairlot/ready": "false"}}})
    wait_for(lambda: plane.admin.get(path)["spec"].get("taints"), what="the node is kept free of pods")
    job = work.create("elsewhere")
    work.start(job, nodes[12])
    (waiting,) = work.wait_for_pods("elsewhere", 1, "Pending")
    wait_for(
        lambda: condition(work.api.get(work.pod(waiting)), "PodScheduled") == "False",
        what="the scheduler says that the pod has no place",
    )
    plane.admin.merge(path, {"metadata": {"annotations": {"test.fairlot/ready": None}}})
    work.wait_for_pods("elsewhere", 1, "Running")
    assert nodes[12] in usable(plane.admin)
