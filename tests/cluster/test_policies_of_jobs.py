"""Tests that a team's user cannot change Fairlot's objects in the team's namespace, even with every right there."""

from __future__ import annotations

import pytest

from tests.cluster.api import JOBS, PODS, Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.deployed import FAIRLOT
from tests.cluster.jobs import Work, on_nodes
from tests.cluster.tenancy import (
    CONFINED,
    GATE,
    GPU,
    answer,
    epoch,
    fairlots_job,
    pod,
    refused,
    running,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


TO_A_JOB: dict[str, tuple[list[Object], str]] = {
    "start it": ([{"op": "replace", "path": "/spec/suspend", "value": False}], "spec.suspend"),
    "start it as Fairlot does": (
        [epoch(1), {"op": "replace", "path": "/spec/suspend", "value": False}],
        "including the epoch",
    ),
    "change its epoch": ([epoch(5)], "including the epoch"),
    "take its token away": (
        [{"op": "remove", "path": "/metadata/annotations/fairlot.io~1token"}],
        "set only by Fairlot",
    ),
    "take its label away": (
        [
            # The API server copies the pod template's labels to a Job without labels.
            {"op": "add", "path": "/metadata/labels/he", "value": "may"},
            {"op": "remove", "path": "/metadata/labels/fairlot.io~1job"},
        ],
        "set only by Fairlot",
    ),
    "make it larger": (
        [{"op": "replace", "path": f"/spec/{name}", "value": 9} for name in ("completions", "parallelism")],
        "spec.parallelism",
    ),
    "give it more GPUs": (
        [
            {
                "op": "replace",
                "path": "/spec/template/spec/containers/0/resources",
                "value": {"limits": {GPU: "8"}, "requests": {GPU: "8"}},
            }
        ],
        "changed only in Fairlot",
    ),
    "keep it when it is deleted": (
        [{"op": "add", "path": "/metadata/finalizers", "value": ["example.org/kept"]}],
        "owners and finalizers",
    ),
    "take the gate out of its template": (
        [{"op": "remove", "path": "/spec/template/spec/schedulingGates"}],
        "changed only in Fairlot",
    ),
}


@pytest.mark.parametrize("what", TO_A_JOB)
def test_he_cannot_change_a_job_of_fairlots(plane: ControlPlane, bob: Api, tenant: str, what: str) -> None:
    path = f"{JOBS.format(tenant)}/fairlot-gang"
    made = plane.api(FAIRLOT).create(JOBS.format(tenant), fairlots_job("fairlot-gang", pods=2))
    operations, words = TO_A_JOB[what]
    refused(lambda: bob.patch(path, operations), words, by="fairlot-jobs")
    there = plane.admin.get(path)
    assert there["spec"] == made["spec"]
    assert there["metadata"]["annotations"] == made["metadata"]["annotations"]


@pytest.fixture
def single(plane: ControlPlane, bob: Api, tenant: str, nodes: list[str]) -> str:
    """Creates one of Fairlot's Jobs, waits until its pod runs, and returns the Job's API path."""
    path = f"{JOBS.format(tenant)}/fairlot-single"
    fairlot = plane.api(FAIRLOT)
    fairlot.create(JOBS.format(tenant), fairlots_job("fairlot-single"))
    fairlot.patch(path, [epoch(1), {"op": "replace", "path": "/spec/suspend", "value": False}])
    wait_for(lambda: running(bob, tenant) == 1, what="it runs")
    return path


def test_he_cannot_stop_or_end_a_running_job(bob: Api, single: str) -> None:
    refused(
        lambda: bob.patch(single, [{"op": "replace", "path": "/spec/suspend", "value": True}]),
        "spec.suspend",
        by="fairlot-jobs",
    )
    refused(
        lambda: bob.merge(f"{single}/status", {"status": {"active": 0, "ready": 0}}),
        "the status of a Job",
        by="fairlot-status",
    )
    bob.merge(single, {"metadata": {"labels": {"he": "may"}}})


@pytest.mark.parametrize("way", ["Background", "Foreground"])
def test_he_may_delete_a_job_with_its_pods(bob: Api, tenant: str, single: str, way: str) -> None:
    bob.delete(single, propagationPolicy=way)
    wait_for(lambda: not bob.items(PODS.format(tenant)), what="its pod is gone")
    wait_for(lambda: not bob.items(JOBS.format(tenant)), what="it is gone")


def test_he_may_delete_a_job_from_above_its_pods(bob: Api, tenant: str, single: str) -> None:
    """Proves that a user may delete a Job and orphan its pods, and then delete these pods.

    The policies must let the garbage collector remove the pods' owner references, and the Job controller their
    finalizers.
    """
    bob.delete(single, propagationPolicy="Orphan")
    wait_for(lambda: not bob.items(JOBS.format(tenant)), what="the Job is gone")

    def left() -> bool:
        [made] = bob.items(PODS.format(tenant))
        return not made["metadata"].get("ownerReferences") and not made["metadata"].get("finalizers")

    wait_for(left, what="its pod is nobody's")
    bob.delete(PODS.format(tenant), gracePeriodSeconds=0)
    wait_for(lambda: not bob.items(PODS.format(tenant)), what="its pod is gone, too")


class Gang:
    """A gang of two workers whose pods have Fairlot's scheduling gate."""

    def __init__(self, plane: ControlPlane, namespace: str, nodes: list[str]) -> None:
        self.fairlot, self.work = plane.api(FAIRLOT), Work(plane.admin, namespace)
        path = f"{self.work.jobs}/fairlot-gang"
        self.fairlot.create(self.work.jobs, fairlots_job("fairlot-gang", pods=2))
        place = {"op": "add", "path": "/spec/template/spec/affinity", "value": on_nodes(*nodes[:2])}
        self.fairlot.patch(
            path, [epoch(1), place, {"op": "replace", "path": "/spec/suspend", "value": False}]
        )
        self.pods = self.work.wait_for_pods("fairlot-gang", 2, "Pending")
        self.path = self.work.pod(self.pods[0])


@pytest.fixture
def gang(plane: ControlPlane, tenant: str, nodes: list[str]) -> Gang:
    return Gang(plane, tenant, nodes)


LATER = [{"name": "later", "image": "example/none", "securityContext": CONFINED}]
TO_A_POD: dict[str, tuple[str, list[Object], str, str]] = {
    "let it through its gate": (
        "",
        [{"op": "remove", "path": "/spec/schedulingGates/0"}],
        "fairlot-pods",
        GATE,
    ),
    "change its epoch": ("", [epoch(5)], "fairlot-pods", "including the epoch"),
    "take its label away": (
        "",
        [{"op": "remove", "path": "/metadata/labels/fairlot.io~1job"}],
        "fairlot-pods",
        "set only by Fairlot",
    ),
    "take it away from its Job": (
        "",
        [{"op": "remove", "path": "/metadata/labels/batch.kubernetes.io~1controller-uid"}],
        "fairlot-pods",
        "set only by the Job controller",
    ),
    "change its rank": (
        "",
        [
            {
                "op": "replace",
                "path": "/metadata/annotations/batch.kubernetes.io~1job-completion-index",
                "value": "7",
            }
        ],
        "fairlot-pods",
        "set only by the Job controller",
    ),
    "take its owner away": (
        "",
        [{"op": "remove", "path": "/metadata/ownerReferences"}],
        "fairlot-pods",
        "owners and finalizers",
    ),
    "keep the Job from counting it": (
        "",
        [{"op": "remove", "path": "/metadata/finalizers"}],
        "fairlot-pods",
        "owners and finalizers",
    ),
    "run another image": (
        "",
        [{"op": "replace", "path": "/spec/containers/0/image", "value": "example/other"}],
        "fairlot-pods",
        "changed only in Fairlot",
    ),
    "send it to another node": (
        "",
        [{"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": "gpu-0009"}}],
        "fairlot-pods",
        "changed only in Fairlot",
    ),
    "let it onto kept nodes": (
        "",
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        "fairlot-pods",
        "changed only in Fairlot",
    ),
    "put a container into it": (
        "/ephemeralcontainers",
        [{"op": "add", "path": "/spec/ephemeralContainers", "value": LATER}],
        "fairlot-pods",
        "no container can be added to a pod of Fairlot",
    ),
    "say how it fares": (
        "/status",
        [{"op": "replace", "path": "/status/phase", "value": "Succeeded"}],
        "fairlot-status",
        "the status of a Job",
    ),
}


def test_he_cannot_change_a_pod_of_fairlots(gang: Gang, bob: Api) -> None:
    before = bob.get(gang.path)
    for what, (subresource, operations, policy, words) in TO_A_POD.items():
        said = answer(lambda s=subresource, o=operations: bob.patch(gang.path + s, o))
        assert f"ValidatingAdmissionPolicy '{policy}'" in said, f"{what}: {said}"
        assert words in said, f"{what}: {said}"
    after = bob.get(gang.path)
    assert (after["spec"], after["metadata"]) == (before["spec"], before["metadata"])
    bob.merge(gang.path, {"metadata": {"labels": {"he": "may"}}})


def test_he_cannot_remove_the_policies_from_his_namespace(bob: Api, admin: Api, tenant: str) -> None:
    """Proves that a user cannot change the namespace so that the policies no longer apply.

    A right to everything in a namespace includes the right to change the namespace itself.
    """
    path = f"/api/v1/namespaces/{tenant}"
    before = admin.get(path)["metadata"]["labels"]
    bob.merge(path, {"metadata": {"labels": {"he": "may"}}})
    for label, value in (
        ("fairlot.io/tenant", None),
        ("fairlot.io/tenant", "9"),
        ("fairlot.io/other", "9"),
        ("pod-security.kubernetes.io/enforce", None),
        ("pod-security.kubernetes.io/enforce", "privileged"),
    ):
        change = {"metadata": {"labels": {label: value}}}
        for subresource in ("", "/status"):
            refused(
                lambda c=change, s=subresource: bob.merge(path + s, c),
                "set only by Fairlot",
                by="fairlot-namespaces",
            )
    assert admin.get(path)["metadata"]["labels"] == {**before, "he": "may"}
    # The cluster's admins may change these labels.
    admin.merge(path, {"metadata": {"labels": {"pod-security.kubernetes.io/warn": None}}})


def test_only_the_scheduler_binds_a_pod(plane: ControlPlane, bob: Api, tenant: str) -> None:
    pods = PODS.format(tenant)
    bob.create(pods, pod("his", schedulerName="his-own"))
    to = {"metadata": {"name": "his"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-0000"}}
    for path in (f"{pods}/his/binding", f"/api/v1/namespaces/{tenant}/bindings"):
        for api in (bob, plane.admin):
            refused(
                lambda api=api, path=path: api.create(path, to),
                "only by the scheduler",
                by="fairlot-placement",
            )
    assert "nodeName" not in bob.get(f"{pods}/his")["spec"]
