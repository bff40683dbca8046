"""A gang's Job on a real control plane: started, let through, fenced, stopped and moved."""

from __future__ import annotations

import pytest

from scheduling.backends.kubernetes import objects
from tests.cluster.api import JOBS, PODS, Api, Object, Refused
from tests.cluster.nodes import condition
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POD = objects.Pod(
    image="example/train",
    command=["python", "train.py"],
    environment={"LEARNING_RATE": "0.1", "PRICE": "$HOME$(HOME)", "RANK": "99"},
    gpus=2,
)


class Gang:
    """One gang in the test's namespace, by the requests of scheduling.backends.kubernetes.objects."""

    def __init__(self, api: Api, namespace: str, *, workers: int, job_id: int = 7) -> None:
        self.api, self.jobs, self.pods_path = api, JOBS.format(namespace), PODS.format(namespace)
        self.job_id = job_id
        self.made = self.make(workers)
        self.uid = self.made["metadata"]["uid"]

    def make(self, workers: int) -> Object:
        return self.api.create(self.jobs, objects.new_job(self.job_id, POD, workers=workers, token="t0"))

    @property
    def path(self) -> str:
        return f"{self.jobs}/{objects.job_name(self.job_id)}"

    def start(self, epoch: int, *nodes: str) -> Object:
        return self.api.patch(self.path, objects.start(self.uid, epoch=epoch, nodes=nodes))

    def stop(self, epoch: int) -> Object:
        return self.api.patch(self.path, objects.stop(self.uid, epoch=epoch))

    def let_through(self, pod: Object, node: str) -> Object:
        path = f"{self.pods_path}/{pod['metadata']['name']}"
        return self.api.patch(path, objects.let_through(pod["metadata"]["uid"], node=node))

    def read(self) -> Object:
        return self.api.get(self.path)

    def pods(self) -> list[Object]:
        """By rank."""
        found = self.api.items(self.pods_path, labelSelector=f"{objects.JOB}={self.job_id}")
        return sorted(found, key=lambda pod: int(pod["metadata"]["annotations"][objects.INDEX]))

    def wait_for_pods(self, count: int, phase: str, *, gated: bool = False) -> list[Object]:
        def there() -> list[Object]:
            pods = [
                pod
                for pod in self.pods()
                if pod["status"].get("phase") == phase and objects.is_gated(pod) == gated
            ]
            return pods if len(pods) == count else []

        return wait_for(there, seconds=60, what=lambda: f"{count} {phase} pods: {self.pods()}")

    def wait_until_left(self) -> None:
        def left() -> bool:
            job = self.read()
            return condition(job, "Suspended") == "True" and not objects.holds_gpus(job) and not self.pods()

        wait_for(left, seconds=60, what="its pods are gone")


def test_making_it_twice_is_refused(admin: Api, namespace: str) -> None:
    gang = Gang(admin, namespace, workers=1)
    with pytest.raises(Refused, match="already exists") as refused:
        gang.make(1)
    assert refused.value.code == 409
    assert gang.pods() == []
    assert objects.epoch_of(gang.made) == 0


def test_pods_pass_the_restricted_standard_and_know_who_they_are(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, nodes[0])
    [pod] = gang.wait_for_pods(1, "Running")
    assert pod["spec"]["nodeName"] == nodes[0]
    assert objects.epoch_of(pod) == 1
    [container] = pod["spec"]["containers"]
    told = {entry["name"]: entry for entry in container["env"]}
    assert len(told) == len(container["env"]), "no variable twice"
    assert told["LEARNING_RATE"]["value"] == "0.1"
    assert told["PRICE"]["value"] == "$$HOME$$(HOME)", "which the kubelet turns back"
    assert told["RANK"]["valueFrom"]["fieldRef"]["fieldPath"].endswith(
        "['batch.kubernetes.io/job-completion-index']"
    )
    assert told["WORLD_SIZE"]["value"] == "1"
    assert "volumes" not in pod["spec"], "no token of a service account"


def test_a_gang_waits_behind_its_gate_until_each_is_let_through_to_its_node(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=3)
    where = [nodes[1], nodes[2], nodes[1]]
    gang.start(0, *where)
    pods = gang.wait_for_pods(3, "Pending", gated=True)
    for pod, node in zip(pods, where, strict=True):
        gang.let_through(pod, node)
        with pytest.raises(Refused) as again:
            gang.let_through(pod, node)
        assert again.value.code == 422
    running = gang.wait_for_pods(3, "Running")
    assert [pod["spec"]["nodeName"] for pod in running] == where


def test_a_gang_that_is_not_let_through_is_taken_back_and_nothing_of_it_ever_ran(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=2)
    gang.start(0, nodes[3])
    pods = gang.wait_for_pods(2, "Pending", gated=True)
    gang.stop(1)
    gang.wait_until_left()
    assert all("nodeName" not in pod["spec"] for pod in pods)
    assert objects.epoch_of(gang.read()) == 2


@pytest.mark.parametrize("late", ["start", "stop"])
def test_a_request_of_an_older_epoch_has_no_effect(
    admin: Api, namespace: str, nodes: list[str], late: str
) -> None:
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, nodes[4])
    gang.wait_for_pods(1, "Running")
    before = gang.read()
    with pytest.raises(Refused) as fenced:
        gang.start(0, nodes[5]) if late == "start" else gang.stop(0)
    assert fenced.value.code == 422
    after = gang.read()
    assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])


def test_a_request_meant_for_a_job_that_was_deleted_does_not_touch_its_namesake(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=1)
    admin.delete(gang.path, propagationPolicy="Background")
    wait_for(lambda: not admin.items(gang.jobs), seconds=30, what="the Job is gone")
    gang.make(1)
    with pytest.raises(Refused) as fenced:
        gang.start(0, nodes[6])
    assert fenced.value.code == 422
    assert gang.read()["spec"]["suspend"] is True


def test_it_stops_holds_its_gpus_until_its_pods_are_gone_and_goes_on_elsewhere(
    admin: Api, namespace: str, nodes: list[str]
) -> None:
    gang = Gang(admin, namespace, workers=1)
    gang.start(0, nodes[7])
    gang.wait_for_pods(1, "Running")
    assert objects.holds_gpus(gang.read())
    gang.stop(1)
    gang.wait_until_left()
    gang.start(2, nodes[8])
    [pod] = gang.wait_for_pods(1, "Running")
    assert pod["spec"]["nodeName"] == nodes[8]
    assert objects.epoch_of(pod) == objects.epoch_of(gang.read()) == 3
