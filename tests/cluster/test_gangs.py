"""Tests that a gang's Job is started, ungated, protected against outdated orders, stopped and moved on a real control
plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from scheduling.backends.kubernetes import objects, podgroups, rendezvous
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.orders import Orders, Outcome
from tests.cluster.api import Api, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobs import Work
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POD = objects.Pod(
    image="example/train",
    command=["python", "train.py"],
    environment={"LEARNING_RATE": "0.1", "PRICE": "$HOME$(HOME)", "RANK": "99"},
    gpus=2,
)


class Gang:
    """A gang in the test's namespace. Its Job is changed by the patches of scheduling.backends.kubernetes.objects."""

    def __init__(self, api: Api, namespace: str, *, workers: int, job_id: int = 7) -> None:
        self.work = Work(api, namespace)
        self.job_id, self.name = job_id, objects.job_name(job_id)
        self.path = f"{self.work.jobs}/{self.name}"
        self.made = self.make(workers)
        self.uid = self.made["metadata"]["uid"]

    def make(self, workers: int) -> Object:
        job = objects.new_job(self.job_id, POD, workers=workers, owner="test")
        return self.work.api.create(self.work.jobs, job)

    def start(self, at: int, epoch: int, *nodes: str) -> Object:
        attempt = objects.Attempt(epoch, f"lease-{epoch}", "A100", nodes)
        return self.work.change(self.name, objects.start(self.uid, at=at, attempt=attempt))

    def stop(self, at: int) -> Object:
        order = objects.stop(self.uid, at=at, epoch=at, token=f"lease-{at}")
        return self.work.change(self.name, order)

    def ungate(self, pod: Object, node: str) -> Object:
        operations = objects.ungate(pod["metadata"]["uid"], node=node, members="")
        return self.work.api.patch(self.work.pod(pod), operations)

    def read(self) -> Object:
        return self.work.read(self.name)

    def pods(self) -> list[Object]:
        return self.work.pods(self.name)

    def wait_for_pods(self, count: int, phase: str) -> list[Object]:
        """Waits until `count` pods of the gang are in the phase `phase`, and returns these pods ordered by rank."""
        pods = self.work.wait_for_pods(self.name, count, phase)
        return sorted(pods, key=objects.rank_of)

    def wait_for_gated(self, count: int) -> list[Object]:
        """Waits until `count` pods of the gang have a scheduling gate, and returns these pods ordered by rank."""
        pods = self.wait_for_pods(count, "Pending")
        assert all(map(objects.is_gated, pods))
        return pods

    def wait_until_left(self) -> None:
        job = self.work.wait_until_drained(self.name)
        assert not objects.holds_gpus(job)


def test_making_it_twice_is_refused(admin: Api, namespace: str) -> None:
    gang = Gang(admin, namespace, workers=1)
    with pytest.raises(Refused, match="already exists") as refused:
        gang.make(1)
    assert refused.value.code == 409
    assert gang.pods() == []
    assert objects.epoch_of(gang.made) == 0


def test_pods_meet_the_restricted_standard_and_know_their_rank(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, 1, nodes[0])
    [pod] = gang.wait_for_pods(1, "Running")
    assert pod["spec"]["nodeName"] == nodes[0]
    assert objects.epoch_of(pod) == 1
    [container] = pod["spec"]["containers"]
    told = {entry["name"]: entry for entry in container["env"]}
    assert len(told) == len(container["env"]), "no variable twice"
    assert told["LEARNING_RATE"]["value"] == "0.1"
    assert told["PRICE"]["value"] == "$$HOME$$(HOME)", "which the kubelet restores"
    assert told["RANK"]["valueFrom"]["fieldRef"]["fieldPath"].endswith(
        "['batch.kubernetes.io/job-completion-index']"
    )
    assert told["WORLD_SIZE"]["value"] == "1"
    sources = [set(volume) - {"name"} for volume in pod["spec"]["volumes"]]
    assert sources == [{"emptyDir"}, {"emptyDir"}], "no token of a service account"


def test_a_gang_waits_behind_its_gates_until_each_pod_is_let_through_to_its_node(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=3)
    where = [nodes[1], nodes[2], nodes[1]]
    gang.start(0, 1, *where)
    pods = gang.wait_for_gated(3)
    for pod, node in zip(pods, where, strict=True):
        gang.ungate(pod, node)
        with pytest.raises(Refused) as again:
            gang.ungate(pod, node)
        assert again.value.code == 422
    running = gang.wait_for_pods(3, "Running")
    assert [pod["spec"]["nodeName"] for pod in running] == where


def test_a_gang_that_is_never_ungated_is_stopped_and_nothing_of_it_ran(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=2)
    gang.start(0, 1, nodes[3], nodes[3])
    pods = gang.wait_for_gated(2)
    gang.stop(1)
    gang.wait_until_left()
    assert all("nodeName" not in pod["spec"] for pod in pods)
    assert objects.is_suspended(gang.read())


@pytest.mark.parametrize("late", ["start", "stop"])
def test_a_request_of_an_older_epoch_has_no_effect(
    admin: Api, namespace: str, nodes: list[str], late: str
) -> None:
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, 1, nodes[4])
    gang.wait_for_pods(1, "Running")
    before = gang.read()
    with pytest.raises(Refused) as fenced:
        gang.start(0, 1, nodes[5]) if late == "start" else gang.stop(0)
    assert fenced.value.code == 422
    after = gang.read()
    assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])


def test_a_request_for_a_deleted_job_does_not_touch_its_namesake(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=1)
    admin.delete(gang.path, propagationPolicy="Background")
    wait_for(lambda: not admin.items(gang.work.jobs), what="the Job is gone")
    gang.make(1)
    with pytest.raises(Refused) as fenced:
        gang.start(0, 1, nodes[6])
    assert fenced.value.code == 422
    assert gang.read()["spec"]["suspend"] is True


def test_it_stops_holds_its_gpus_until_its_pods_are_gone_and_continues_on_other_nodes(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, 1, nodes[7])
    gang.wait_for_pods(1, "Running")
    wait_for(lambda: objects.holds_gpus(gang.read()), what="the Job controller has counted the pod")
    gang.stop(1)
    gang.wait_until_left()
    gang.start(1, 2, nodes[8])
    [pod] = gang.wait_for_pods(1, "Running")
    assert pod["spec"]["nodeName"] == nodes[8]
    assert objects.epoch_of(pod) == objects.epoch_of(gang.read()) == 2


# --- by orders -------------------------------------------------------------------------------------------


class Heard(OwnApi):
    """An API client that records its requests, such as "GET /api/v1/pods"."""

    paths: list[str]

    def get(self, path: str, **query: object) -> Object:
        self.paths.append(f"GET {path}")
        return super().get(path, **query)

    def create(self, path: str, thing: Object) -> Object:
        self.paths.append(f"POST {path}")
        return super().create(path, thing)


@pytest.fixture
def orders(plane: ControlPlane, namespace: str) -> Iterator[Orders]:
    api = Heard(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
    api.paths = []
    yield Orders(api, namespace, "test")
    api.close()


def begin(orders: Orders, epoch: int, *nodes: str, job_id: int = 7) -> Outcome:
    return orders.start(job_id, POD, objects.Attempt(epoch, f"lease-{epoch}", "A100", nodes))


def heard(orders: Orders) -> list[str]:
    assert isinstance(orders.api, Heard)
    return orders.api.paths


def test_without_podgroups_gangs_start_and_the_api_server_is_asked_once(
    orders: Orders, nodes: list[str]
) -> None:
    for job_id in (7, 8):
        assert begin(orders, 1, *nodes[:2], job_id=job_id) is Outcome.DONE
        job = orders.find(job_id)
        assert job
        assert "schedulingGroup" not in job["spec"]["template"]["spec"]
    about_groups = [asked for asked in heard(orders) if podgroups.GROUP in asked]
    assert about_groups == ["GET /apis/scheduling.k8s.io"]
    made = [asked.rsplit("/", 1)[1] for asked in heard(orders) if asked.startswith("POST")]
    assert made == ["jobs", "services", "configmaps"] * 2


def test_a_group_that_the_api_server_does_not_know_is_not_created(
    orders: Orders, namespace: str, nodes: list[str]
) -> None:
    """Proves that Fairlot creates no PodGroup if the API server does not know the field of pods that names the
    PodGroup.

    Such an API server drops the field.
    """
    wanted = objects.new_job(7, POD, workers=2, owner="test", grouped=True)
    assert podgroups.named_by(wanted)
    made = orders.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", wanted)
    assert podgroups.named_by(made) == ""
    before = len(heard(orders))
    assert begin(orders, 1, *nodes[:2]) is Outcome.DONE
    assert not [asked for asked in heard(orders)[before:] if podgroups.GROUP in asked]


@contextmanager
def left_behind(
    plane: ControlPlane, orders: Orders, namespace: str, nodes: Sequence[str]
) -> Iterator[Object]:
    """Yields the Job of a gang that was deleted after its first attempt and whose Service and ConfigMap still exist.

    The controller manager is frozen for the block, so the garbage collector does not delete these two objects.
    """
    assert begin(orders, 1, *nodes) is Outcome.DONE
    work = Work(plane.admin, namespace)
    work.wait_for_pods(objects.job_name(7), 2, "Pending")
    assert orders.stop(7, epoch=1, token="lease-1") is Outcome.DONE
    first = work.wait_until_drained(objects.job_name(7))
    plane.controller_manager.freeze()
    try:
        plane.admin.delete(f"{work.jobs}/{objects.job_name(7)}", propagationPolicy="Background")
        assert set(owners(plane.admin, namespace)) == {first["metadata"]["uid"]}
        yield first
    finally:
        plane.controller_manager.thaw()


def test_a_gang_that_is_created_again_has_its_own_names_before_the_old_ones_are_collected(
    plane: ControlPlane, orders: Orders, namespace: str, nodes: list[str]
) -> None:
    """Proves that a gang that is created again gets a new Service and ConfigMap, even while the old ones still exist.

    If it adopted the old ones, the garbage collector would delete them later.
    """
    with left_behind(plane, orders, namespace, nodes[:2]) as first:
        assert begin(orders, 2, *nodes[:2]) is Outcome.DONE
    second = Work(plane.admin, namespace).read(objects.job_name(7))
    assert set(owners(plane.admin, namespace)) == {second["metadata"]["uid"]} != {first["metadata"]["uid"]}
    # A delayed process that only knows the first Job does not change the second Job's objects.
    how = {"job_label": objects.JOB, "slots": rendezvous.hosts(objects.job_name(7), workers=2, gpus=2)}
    assert not rendezvous.prepare(orders.api, namespace, first, **how)
    assert set(owners(plane.admin, namespace)) == {second["metadata"]["uid"]}


def test_two_processes_with_the_same_order_create_the_names_again_once(
    plane: ControlPlane,
    orders: Orders,
    namespace: str,
    nodes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delete = orders.api.delete

    def late(path: str, **conditions: Any) -> Object:
        monkeypatch.setattr(orders.api, "delete", delete)
        assert begin(orders, 2, *nodes[:2]) is Outcome.DONE  # meanwhile creates an object of the second Job
        return delete(path, **conditions)

    with left_behind(plane, orders, namespace, nodes[:2]):
        monkeypatch.setattr(orders.api, "delete", late)
        assert begin(orders, 2, *nodes[:2]) is Outcome.DONE
        assert orders.api.delete == delete, "it was too late"
    job = Work(plane.admin, namespace).read(objects.job_name(7))
    assert set(owners(plane.admin, namespace)) == {job["metadata"]["uid"]}


def owners(api: Api, namespace: str) -> list[str]:
    """Returns the UIDs of the owners of a gang's Service (for DNS names of workers) and ConfigMap (for the list of
    hosts)."""
    told = [
        api.get(f"/api/v1/namespaces/{namespace}/{kind}/{objects.job_name(7)}")
        for kind in ("services", "configmaps")
    ]
    return [owner["uid"] for one in told for owner in one["metadata"]["ownerReferences"]]
