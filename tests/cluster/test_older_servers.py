"""Tests of Kubernetes before 1.36, which cannot move a Job to other nodes once the Job has run.

The tests use a current API server in which the feature gates for such moves are off, instead of an older release.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Invalid
from scheduling.backends.kubernetes.orders import Orders, Outcome, StillThere
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.jobs import Work
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GATES = "MutableSchedulingDirectivesForSuspendedJobs=false,MutablePodResourcesForSuspendedJobs=false"
OLDER = {"feature-gates": GATES}
POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
JOB_ID = 12
NAME = objects.job_name(JOB_ID)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane("older", apiserver=OLDER, controller_manager=OLDER) as running:
        yield running


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> list[str]:
    return plane.add_nodes(3)


@pytest.fixture
def orders(plane: ControlPlane, namespace: str) -> Iterator[Orders]:
    api = OwnApi(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
    yield Orders(api, namespace, "ours")
    api.close()


def attempt(epoch: int, *nodes: str) -> objects.Attempt:
    return objects.Attempt(epoch, f"lease-{epoch}", "A100", nodes)


def run_a_turn(orders: Orders, work: Work, *where: str) -> Object:
    """Runs and stops the job's first attempt. Returns the Job once all its pods are gone."""
    assert orders.start(JOB_ID, POD, attempt(1, *where)) is Outcome.DONE
    for pod in work.wait_for_pods(NAME, len(where), "Pending") if len(where) > 1 else ():
        uid, node = pod["metadata"]["uid"], where[objects.rank_of(pod)]
        work.api.patch(work.pod(pod), objects.ungate(uid, node=node, members=""))
    work.wait_for_pods(NAME, len(where), "Running")
    assert orders.stop(JOB_ID, epoch=1, token="lease-1") is Outcome.DONE
    return work.wait_until_drained(NAME)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_has_run_is_created_again_where_it_cannot_be_moved(
    admin: Api, namespace: str, orders: Orders, nodes: list[str], workers: int
) -> None:
    work = Work(admin, namespace)
    first = run_a_turn(orders, work, *nodes[:workers])
    patch = objects.start(first["metadata"]["uid"], at=1, attempt=attempt(2, *nodes[1 : workers + 1]))
    with pytest.raises(Invalid, match="field is immutable"):
        orders.api.patch(f"{work.jobs}/{NAME}", patch)

    def goes() -> bool:
        try:
            return orders.start(JOB_ID, POD, attempt(2, *nodes[1 : workers + 1])) is Outcome.DONE
        except StillThere:  # while the Service and ConfigMap of the first Job still exist
            return False

    wait_for(goes, what="it runs again")
    pods = work.wait_for_pods(NAME, workers, "Running" if workers == 1 else "Pending")
    assert {objects.epoch_of(pod) for pod in pods} == {2}
    second = work.read(NAME)
    assert objects.epoch_of(second) == 2
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert orders.start(JOB_ID, POD, attempt(1, *nodes[:workers])) is Outcome.OVERTAKEN
    assert orders.stop(JOB_ID, epoch=1, token="lease-1") is Outcome.OVERTAKEN
