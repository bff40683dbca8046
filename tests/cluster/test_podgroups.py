"""Tests of gangs as PodGroups, on a separate control plane that has this feature (alpha in Kubernetes 1.36)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Missing, Unreachable
from scheduling.backends.kubernetes.checking import Findings, look
from scheduling.backends.kubernetes.kubeconfig import parse
from scheduling.backends.kubernetes.orders import Orders, Outcome
from scheduling.backends.kubernetes.rights import OPTIONAL
from tests.cluster import deployed
from tests.cluster.api import JOBS, PODS, Api, Object
from tests.cluster.backend_rig import Rig
from tests.cluster.conftest import PEOPLE
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.tenancy import pod, refused
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GATES = {"feature-gates": "GenericWorkload=true,GangScheduling=true"}
OFFERED = {"runtime-config": "scheduling.k8s.io/v1alpha2=true"}
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
JOB_ID = 12


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    flags = {"apiserver": GATES | OFFERED, "controller_manager": GATES, "scheduler": GATES}
    with control_plane("podgroups", users=PEOPLE, **flags) as running:
        yield running


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> list[str]:
    return plane.add_nodes(4)


@pytest.fixture(scope="module")
def fairlot(plane: ControlPlane) -> Path:
    deployed.install(plane)
    return plane.kubeconfig(deployed.FAIRLOT)


class Lossy(OwnApi):
    """An API client that can lose the next request for a PodGroup or the response, or pretend that a PodGroup does not
    exist."""

    lose = ""

    def create(self, path: str, thing: Object) -> Object:
        if not path.endswith("/podgroups"):
            return super().create(path, thing)
        if self._loses("request"):
            raise Unreachable("the request was lost")
        answer = super().create(path, thing)
        if self._loses("answer"):
            raise Unreachable("the answer was lost")
        return answer

    def get(self, path: str, **query: Any) -> Object:
        if "/podgroups/" in path and self._loses("sight"):
            raise Missing(404, {})
        return super().get(path, **query)

    def _loses(self, what: str) -> bool:
        is_lost = self.lose == what
        if is_lost:
            self.lose = ""
        return is_lost


@pytest.fixture(scope="module")
def own(fairlot: Path) -> Iterator[Lossy]:
    api = Lossy(yaml.safe_load(fairlot.read_text()))
    yield api
    api.close()


@pytest.fixture
def rig(admin: Api, fairlot: Path, tenant: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(admin, fairlot, tenant, tmp_path)
    with rig.watching():
        yield rig


@pytest.fixture
def orders(own: Lossy, tenant: str) -> Orders:
    return Orders(own, tenant, "ours")


def start(orders: Orders, epoch: int, *nodes: str) -> Outcome:
    return orders.start(JOB_ID, POD, objects.Attempt(epoch, f"lease-{epoch}", "A100", nodes))


def group_of(pod: Object) -> str:
    return str(pod["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


def verdict(group: Object) -> str:
    """Returns the status of the PodGroup's condition PodGroupScheduled; "" if the condition is missing."""
    found = group.get("status", {}).get("conditions", ())
    return next((one["status"] for one in found if one["type"] == "PodGroupScheduled"), "")


def test_a_gang_is_one_podgroup_in_all_attempts_which_is_deleted_with_its_job(
    admin: Api, tenant: str, rig: Rig, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(*nodes[:3], gpus=8))
    rig.wait(gang, Phase.RUNNING)
    [group] = admin.items(GROUPS.format(tenant))
    [job] = admin.items(JOBS.format(tenant))
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert {group_of(pod) for pod in rig.pods(gang)} == {group["metadata"]["name"]}
    wait_for(lambda: verdict(admin.items(GROUPS.format(tenant))[0]) == "True", what="the scheduler knows it")
    rig.stop(gang)
    rig.wait(gang)
    again = rig.start(rig.gang(*nodes[1:], gpus=8, epoch=2))
    rig.wait(again, Phase.RUNNING)
    assert [pod["spec"]["nodeName"] for pod in rig.pods(again)] == nodes[1:]
    [same] = admin.items(GROUPS.format(tenant))
    assert same["metadata"]["uid"] == group["metadata"]["uid"]
    # The first ungated pod waited for the other pods, which users need not know.
    assert not [event.text for event in rig.cluster_events if "pod group" in event.text]
    rig.stop(again)
    rig.wait(again)
    admin.delete(f"{JOBS.format(tenant)}/{job['metadata']['name']}", propagationPolicy="Background")
    wait_for(lambda: not admin.items(GROUPS.format(tenant)), what="its PodGroup has gone with it")


def test_a_single_worker_needs_no_group(admin: Api, tenant: str, rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    assert [group_of(pod) for pod in rig.pods(gang)] == [""]
    assert admin.items(GROUPS.format(tenant)) == []
    rig.stop(gang)
    rig.wait(gang)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_gang_that_does_not_fit_is_bound_in_part_only_without_a_group(
    plane: ControlPlane, rig: Rig, nodes: list[str], grouped: bool
) -> None:
    if not grouped:
        rig.backend._groups._refused_until = math.inf
    gang = rig.start(rig.gang(nodes[0], nodes[1], nodes[1], gpus=5))

    def is_tried() -> bool:
        """Returns whether all pods are ungated and the scheduler has found a pod that it cannot place."""
        pods = rig.pods(gang)
        if len(pods) < 3 or any(map(objects.is_gated, pods)) or not any(map(is_unplaced, pods)):
            return False
        return grouped or sum("nodeName" in pod["spec"] for pod in pods) == 2

    wait_for(is_tried, what=lambda: str([pod["status"] for pod in rig.pods(gang)]))
    bound = plane.audited(resource="pods", subresource="binding", namespace=rig.namespace, verb="create")
    assert bool(bound) is not grouped
    rig.backend._ungater._start_seconds = 0.0
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "Insufficient nvidia.com/gpu" in ended.message, "not what is said of those that wait for it"
    assert bool(plane.audited(resource="pods", subresource="binding", namespace=rig.namespace)) is not grouped


def is_unplaced(pod: Object) -> bool:
    return any(
        one["type"] == "PodScheduled" and "Insufficient" in one.get("message", "")
        for one in pod["status"].get("conditions", ())
    )


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_group_whose_creation_was_lost_exists_once_after_the_order_is_repeated(
    admin: Api, own: Lossy, orders: Orders, nodes: list[str], lost: str
) -> None:
    own.lose, tenant = lost, orders.namespace
    with pytest.raises(Unreachable):
        start(orders, 1, *nodes[:2])
    [job] = admin.items(JOBS.format(tenant))
    assert objects.is_suspended(job), "no pod of it is there before its group"
    assert start(orders, 1, *nodes[:2]) is Outcome.DONE
    [started] = admin.items(JOBS.format(tenant))
    assert started["metadata"]["uid"] == job["metadata"]["uid"]
    [group] = admin.items(GROUPS.format(tenant))
    assert group["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_a_group_that_the_same_order_created_meanwhile_is_used(
    admin: Api, own: Lossy, orders: Orders, nodes: list[str]
) -> None:
    own.lose, tenant = "answer", orders.namespace
    with pytest.raises(Unreachable):
        start(orders, 1, *nodes[:2])
    own.lose = "sight"
    assert start(orders, 1, *nodes[:2]) is Outcome.DONE
    [pod, _] = wait_for(lambda: pods_of(admin, tenant, 2), what="its pods")
    [group] = admin.items(GROUPS.format(tenant))
    assert group_of(pod) == group["metadata"]["name"]


def pods_of(admin: Api, tenant: str, count: int) -> list[Object]:
    """Returns the job's pods if there are `count` of them, otherwise an empty list."""
    found = admin.items(f"/api/v1/namespaces/{tenant}/pods", labelSelector=f"{objects.JOB}={JOB_ID}")
    return found if len(found) == count else []


def test_a_deleted_group_is_created_again_for_the_next_attempt(
    admin: Api, tenant: str, rig: Rig, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(*nodes[:2]))
    rig.wait(gang, Phase.RUNNING)
    [group] = admin.items(GROUPS.format(tenant))
    rig.stop(gang)
    rig.wait(gang)
    admin.delete(f"{GROUPS.format(tenant)}/{group['metadata']['name']}")
    wait_for(lambda: not admin.items(GROUPS.format(tenant)), what="it is gone")
    again = rig.start(rig.gang(*nodes[:2], epoch=2))
    rig.wait(again, Phase.RUNNING)
    [anew] = admin.items(GROUPS.format(tenant))
    assert anew["metadata"]["name"] == group["metadata"]["name"]


def test_a_foreign_group_of_the_same_name_does_not_stop_a_gang(
    own: Lossy, tenant: str, rig: Rig, nodes: list[str]
) -> None:
    name = f"{objects.job_name(1)}-0"
    about = {"name": name, "labels": {objects.JOB: "1"}}
    theirs = {"metadata": about, "spec": {"schedulingPolicy": {"gang": {"minCount": 99}}}}
    # As Fairlot, because the policies refuse this name to other users.
    own.create(GROUPS.format(tenant), theirs)
    gang = rig.start(rig.gang(*nodes[:2]))
    rig.wait(gang, Phase.RUNNING)
    assert {group_of(pod) for pod in rig.pods(gang)} == {""}
    other = rig.start(rig.gang(*nodes[2:], job=2))
    rig.wait(other, Phase.RUNNING)
    assert {group_of(pod) for pod in rig.pods(other)} == {f"{objects.job_name(2)}-0"}


def test_the_teams_users_cannot_change_the_groups_of_gangs(
    bob: Api, tenant: str, rig: Rig, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(*nodes[:2]))
    rig.wait(gang, Phase.RUNNING)
    groups, name = GROUPS.format(tenant), f"{objects.job_name(1)}-0"
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    for about in ({"name": "fairlot-mine"}, {"name": "mine", "labels": {objects.JOB: "1"}}):
        refused(
            lambda about=about: bob.create(groups, {"metadata": about, "spec": spec}), by="fairlot-podgroups"
        )
    mark = {"metadata": {"annotations": {"some": "mark"}}}
    refused(lambda: bob.merge(f"{groups}/{name}", mark), "only by Fairlot", by="fairlot-podgroups")
    slipped = pod("slipped", schedulingGroup={"podGroupName": name})
    refused(lambda: bob.create(PODS.format(tenant), slipped), "only for those jobs", by="fairlot-pods")
    # Bob may create a PodGroup of another name.
    bob.create(groups, {"metadata": {"name": "mine"}, "spec": spec})
    bob.create(PODS.format(tenant), pod("mine", schedulingGroup={"podGroupName": "mine"}))
    wait_for(
        lambda: bob.get(f"{PODS.format(tenant)}/mine")["status"].get("phase") == "Running",
        what="his pod runs",
    )


def test_without_the_right_gangs_run_without_groups(
    plane: ControlPlane, own: Lossy, rig: Rig, nodes: list[str]
) -> None:
    """Proves that gangs run without PodGroups if Fairlot may not create them, even a gang whose earlier attempt had
    one."""
    admin, tenant = rig.admin, rig.namespace
    assert checked(plane).rights["create podgroups.scheduling.k8s.io of a team"]
    gang = rig.start(rig.gang(*nodes[:2]))
    rig.wait(gang, Phase.RUNNING)
    assert {group_of(pod) for pod in rig.pods(gang)} != {""}
    rig.stop(gang)
    rig.wait(gang)
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlot-tenant"
    rules = admin.get(role)["rules"]
    admin.merge(role, {"rules": [rule for rule in rules if "podgroups" not in rule["resources"]]})
    try:
        wait_for(lambda: not may_make_groups(own, tenant), what="the right is gone")
        found = checked(plane)
        assert {key for key, there in found.rights.items() if not there} == OPTIONAL
        assert (found.trouble, found.podgroups) == ("", "v1alpha2")
        again = rig.start(rig.gang(*nodes[:2], epoch=2))
        rig.wait(again, Phase.RUNNING)
        assert {group_of(pod) for pod in rig.pods(again)} == {""}
        others = [rig.start(rig.gang(*nodes[2:], job=job)) for job in (2, 3)]
        for other in others:
            rig.wait(other, Phase.RUNNING)
            assert {group_of(pod) for pod in rig.pods(other)} == {""}
        asked = plane.audited(resource="podgroups", namespace=tenant, user=deployed.FAIRLOT)
        refused = [event for event in asked if event["responseStatus"]["code"] == 403]
        assert len(refused) == 1, "it is not tried for each gang anew"
    finally:
        admin.merge(role, {"rules": rules})
        wait_for(lambda: may_make_groups(own, tenant), what="the right is back")


def checked(plane: ControlPlane) -> Findings:
    """Returns the findings of a cluster check, as the admin pages show them."""
    lasting = plane.kubeconfig(deployed.FAIRLOT, seconds=7 * 24 * 3600)
    return look(parse(deployed.flattened(lasting)), namespace_prefix="fairlot", now=datetime.now(UTC))


def may_make_groups(own: OwnApi, tenant: str) -> bool:
    attributes = {
        "verb": "create",
        "group": "scheduling.k8s.io",
        "resource": "podgroups",
        "namespace": tenant,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = own.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"].get("allowed"))


def test_a_gang_continues_when_its_api_server_drops_groups_and_offers_them_again(
    plane: ControlPlane, admin: Api, tenant: str, rig: Rig, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(*nodes[:2]))
    rig.wait(gang, Phase.RUNNING)
    rig.stop(gang)
    rig.wait(gang)
    flags = plane.apiserver.flags
    for name in GATES | OFFERED:
        del flags[name]
    plane.apiserver.restart()
    try:
        again = rig.start(rig.gang(*nodes[:2], epoch=2))
        rig.wait(again, Phase.RUNNING)
        [job] = admin.items(JOBS.format(tenant))
        assert "schedulingGroup" not in job["spec"]["template"]["spec"]
    finally:
        flags.update(GATES | OFFERED)
        plane.apiserver.restart()
    rig.stop(again)
    rig.wait(again)
    third = rig.start(rig.gang(*nodes[:2], epoch=3))
    rig.wait(third, Phase.RUNNING)
    assert {group_of(pod) for pod in rig.pods(third)} == {""}, "which is what its Job says"
