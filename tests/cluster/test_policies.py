"""A tenant's user whom an administrator gave every right in the tenant's namespace does not get past Fairlot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.api import JOBS, PODS, Api, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.deployed import FAIRLOT, manifests
from tests.cluster.jobs import Work, on_nodes
from tests.cluster.tenancy import (
    CONFINED,
    EPOCH,
    GATE,
    GPU,
    JOB,
    container,
    epoch,
    fairlots_job,
    own_job,
    pod,
    pod_spec,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GENEROUS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: bob-may-all, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}}]
"""
APPS = "/apis/apps/v1/namespaces/{}/"
CLAIM = [{"name": "device", "resourceClaimName": "mine"}]
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
FROM_MAP = {"configMapKeyRef": {"name": "some", "key": "devices"}}


@pytest.fixture
def bob(plane: ControlPlane, tenant: str) -> Api:
    """He may do all that RBAC can allow within the tenant's namespace."""
    plane.admin.apply(GENEROUS.format(namespace=tenant))
    api = plane.api("bob")
    wait_for(lambda: may_list(api, tenant), what="his rights")
    return api


def may_list(api: Api, namespace: str) -> bool:
    try:
        api.items(JOBS.format(namespace))
    except Refused:
        return False
    return True


def refused(call: Callable[[], Any], *words: str, by: str) -> None:
    with pytest.raises(Refused) as refusal:
        call()
    said = refusal.value
    assert (said.code, said.reason) == (403, "Forbidden"), said.message
    assert f"ValidatingAdmissionPolicy '{by}'" in said.message
    for word in words:
        assert word in said.message


# --- what he may not make --------------------------------------------------------------------------------

PODS_REFUSED: dict[str, tuple[Object, str, str]] = {
    "a bare pod with a GPU": (pod("p", container(gpus=1)), "fairlot-gpus", "GPUs are given out by Fairlot"),
    "a slice of a GPU": (
        pod("p", container(resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}})),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a GPU in requests and limits": (
        pod("p", container(resources={"requests": {GPU: "1"}, "limits": {GPU: "1"}})),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a GPU in the second container": (
        pod("p", container(), container("second", gpus=1)),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a GPU in an init container": (
        pod("p", initContainers=[container("first", gpus=1)]),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a GPU in a sidecar": (
        pod("p", initContainers=[container("beside", gpus=1, restartPolicy="Always")]),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a device class as a resource": (
        pod("p", container(resources={"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}})),
        "fairlot-gpus",
        "GPUs are given out by Fairlot",
    ),
    "a claim of a device": (pod("p", resourceClaims=CLAIM), "fairlot-gpus", "resourceClaims"),
    "every GPU of the node by its environment": (
        pod("p", container(env=ALL)),
        "fairlot-gpus",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    "the same in an init container": (
        pod("p", initContainers=[container("first", env=ALL)]),
        "fairlot-gpus",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    "the same from elsewhere": (
        pod("p", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": FROM_MAP}])),
        "fairlot-gpus",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    "every GPU of the node by an annotation": (
        pod("p", annotations={"cdi.k8s.io/all": "nvidia.com/gpu=all"}),
        "fairlot-gpus",
        "cdi.k8s.io",
    ),
    "a pod that pretends by its label": (pod("p", labels={JOB: "1"}), "fairlot-pods", "under fairlot.io"),
    "a pod that pretends by its annotation": (
        pod("p", annotations={EPOCH: "7"}),
        "fairlot-pods",
        "under fairlot.io",
    ),
    "a pod that pretends to be a Job's": (
        pod("p", labels={"batch.kubernetes.io/controller-uid": "some-uid"}),
        "fairlot-pods",
        "said by the Job controller alone",
    ),
    "a pod that is let onto nodes for GPUs": (
        pod("p", tolerations=[{"key": GPU, "operator": "Exists"}]),
        "fairlot-gpus",
        "kept for GPUs",
    ),
    "a pod that is let onto every node": (
        pod("p", tolerations=[{"operator": "Exists"}]),
        "fairlot-gpus",
        "kept for GPUs",
    ),
    "a pod on a node of his choice": (pod("p", nodeName="gpu-0000"), "fairlot-placement", "spec.nodeName"),
    "a volume that a driver makes": (
        pod("p", volumes=[{"name": "v", "csi": {"driver": "example.org"}}]),
        "fairlot-confined",
        "csi",
    ),
    "a pod that drives others out": (
        pod("p", priorityClassName="system-node-critical"),
        "fairlot-confined",
        "priority classes",
    ),
}


@pytest.mark.parametrize("what", PODS_REFUSED)
def test_he_cannot_make(bob: Api, tenant: str, what: str) -> None:
    made, policy, words = PODS_REFUSED[what]
    refused(lambda: bob.create(PODS.format(tenant), made), words, by=policy)


def test_a_pod_with_a_label_of_fairlot_and_a_gpu_is_refused_for_both(bob: Api, tenant: str) -> None:
    with pytest.raises(Refused, match=r"fairlot-gpus|fairlot-pods"):
        bob.create(PODS.format(tenant), pod("p", container(gpus=1), labels={JOB: "1"}))


def test_he_cannot_use_the_runtime_of_gpus(bob: Api, admin: Api, tenant: str) -> None:
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    admin.create(path, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    try:
        made = pod("p", runtimeClassName="nvidia")
        # The plug-in that looks the class up hears of it a little later.
        wait_for(
            lambda: "not found" not in answer(lambda: bob.create(f"{PODS.format(tenant)}?dryRun=All", made)),
            what="the runtime class is known",
        )
        refused(lambda: bob.create(PODS.format(tenant), made), "runtime class", by="fairlot-gpus")
    finally:
        admin.delete(f"{path}/nvidia")


def answer(call: Callable[[], Any]) -> str:
    try:
        call()
    except Refused as refusal:
        return refusal.message
    return ""


def with_selector(spec: Object) -> Object:
    template = {"metadata": {"labels": {"app": "his"}}, "spec": {**spec, "restartPolicy": "Always"}}
    return {
        "metadata": {"name": "his"},
        "spec": {"selector": {"matchLabels": {"app": "his"}}, "template": template},
    }


WITH_GPU = pod_spec(container(gpus=1))
CONTROLLERS = {
    "deployments": (APPS + "deployments", with_selector(WITH_GPU)),
    "statefulsets": (APPS + "statefulsets", with_selector(WITH_GPU)),
    "daemonsets": (APPS + "daemonsets", with_selector(WITH_GPU)),
    "replicasets": (APPS + "replicasets", with_selector(WITH_GPU)),
    "jobs": (JOBS, own_job("his", WITH_GPU)),
    "jobs with claims": (JOBS, own_job("his", pod_spec(resourceClaims=CLAIM))),
    "cronjobs": (
        "/apis/batch/v1/namespaces/{}/cronjobs",
        {
            "metadata": {"name": "his"},
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": own_job("his", WITH_GPU)["spec"]}},
        },
    ),
    "replicationcontrollers": (
        "/api/v1/namespaces/{}/replicationcontrollers",
        {
            "metadata": {"name": "his"},
            "spec": {"selector": {"app": "his"}, "template": with_selector(WITH_GPU)["spec"]["template"]},
        },
    ),
}


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_what_makes_pods_with_gpus_is_refused_at_once(bob: Api, tenant: str, kind: str) -> None:
    path, made = CONTROLLERS[kind]
    refused(
        lambda: bob.create(path.format(tenant), made),
        "GPUs are given out by Fairlot",
        by="fairlot-gpus-in-templates",
    )


def test_a_deployment_that_is_given_gpus_later_gets_no_pod_and_an_event_says_why(
    bob: Api, tenant: str, nodes: list[str]
) -> None:
    deployments = (APPS + "deployments").format(tenant)
    bob.create(deployments, with_selector(pod_spec()))
    wait_for(lambda: running(bob, tenant) == 1, what="its pod runs without GPUs")
    limits = {"op": "add", "path": "/spec/template/spec/containers/0/resources/limits", "value": {GPU: "1"}}
    bob.patch(f"{deployments}/his", [limits])

    def told() -> bool:
        events = bob.items(f"/api/v1/namespaces/{tenant}/events")
        return any("GPUs are given out by Fairlot" in event.get("message", "") for event in events)

    wait_for(told, what="an event says why")
    assert not [found for found in bob.items(PODS.format(tenant)) if "limits" in resources_of(found)]


def resources_of(thing: Object) -> Object:
    found: Object = thing["spec"]["containers"][0]["resources"]
    return found


def running(api: Api, namespace: str) -> int:
    return sum(found["status"].get("phase") == "Running" for found in api.items(PODS.format(namespace)))


# --- what he may make ------------------------------------------------------------------------------------


def test_pods_and_jobs_without_gpus_are_his_own_affair(bob: Api, tenant: str, nodes: list[str]) -> None:
    bob.create(
        PODS.format(tenant), pod("his", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]))
    )
    bob.create(JOBS.format(tenant), own_job("his", suspend=True))
    bob.patch(f"{JOBS.format(tenant)}/his", [{"op": "replace", "path": "/spec/suspend", "value": False}])
    wait_for(lambda: running(bob, tenant) == 2, what="both run")
    bob.merge(f"{PODS.format(tenant)}/his", {"metadata": {"labels": {"he": "may"}}})
    bob.delete(f"{JOBS.format(tenant)}/his", propagationPolicy="Background")
    bob.delete(f"{PODS.format(tenant)}/his")
    wait_for(lambda: not bob.items(PODS.format(tenant)), what="both are gone")


def test_a_pod_of_his_cannot_become_what_it_could_not_be_made_as(bob: Api, tenant: str) -> None:
    """Labels may be changed by way of the status as well, and tolerations be added later."""
    path = f"{PODS.format(tenant)}/his"
    bob.create(PODS.format(tenant), pod("his", schedulerName="nobody"))
    for subresource in ("", "/status"):
        for labels, words in (
            ({JOB: "1"}, "set by Fairlot alone"),
            ({"batch.kubernetes.io/controller-uid": "some-uid"}, "said by the Job controller alone"),
        ):
            change = {"metadata": {"labels": labels}}
            said = answer(lambda s=subresource, c=change: bob.merge(path + s, c))
            assert words in said or "'fairlot-status'" in said, f"{labels} by {subresource}: {said}"
    everywhere = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
    refused(lambda: bob.patch(path, everywhere), "kept for GPUs", by="fairlot-pods")
    elsewhere = {"key": "example.org/slow", "operator": "Exists"}
    bob.patch(path, [{"op": "add", "path": "/spec/tolerations/-", "value": elsewhere}])
    jobs = JOBS.format(tenant)
    bob.create(jobs, own_job("his", suspend=True))
    change = {"metadata": {"annotations": {EPOCH: "0"}}}
    refused(lambda: bob.merge(f"{jobs}/his/status", change), "set by Fairlot alone", by="fairlot-jobs")


JOBS_REFUSED = {
    "by a label": {"metadata": {"labels": {JOB: "1"}}},
    "by an annotation": {"metadata": {"annotations": {EPOCH: "0"}}},
    "by a label of its pods": {"spec": {"template": {"metadata": {"labels": {JOB: "1"}}}}},
    "by an annotation of its pods": {"spec": {"template": {"metadata": {"annotations": {EPOCH: "0"}}}}},
}


@pytest.mark.parametrize("how", JOBS_REFUSED)
def test_a_job_of_his_cannot_pretend_to_be_fairlots(bob: Api, tenant: str, how: str) -> None:
    """Neither when it is made nor later on: of a suspended Job the template may be changed."""
    jobs = JOBS.format(tenant)
    bob.create(jobs, own_job("his", suspend=True))
    refused(lambda: bob.merge(f"{jobs}/his", JOBS_REFUSED[how]), "set by Fairlot alone", by="fairlot-jobs")
    made = own_job("second", suspend=True)
    made["metadata"] |= JOBS_REFUSED[how].get("metadata", {})
    made["spec"]["template"] |= JOBS_REFUSED[how].get("spec", {}).get("template", {})
    refused(lambda: bob.create(jobs, made), "set by Fairlot alone", by="fairlot-jobs")


# --- what he may not do to what is Fairlot's -------------------------------------------------------------

TO_A_JOB: dict[str, tuple[list[Object], str]] = {
    "start it": ([{"op": "replace", "path": "/spec/suspend", "value": False}], "spec.suspend"),
    "start it as Fairlot does": (
        [epoch(1), {"op": "replace", "path": "/spec/suspend", "value": False}],
        "the epoch among them",
    ),
    "change its epoch": ([epoch(5)], "the epoch among them"),
    "take its token away": (
        [{"op": "remove", "path": "/metadata/annotations/fairlot.io~1token"}],
        "set by Fairlot alone",
    ),
    "take its label away": (
        [
            # The API server gives a Job without labels those of its pods.
            {"op": "add", "path": "/metadata/labels/he", "value": "may"},
            {"op": "remove", "path": "/metadata/labels/fairlot.io~1job"},
        ],
        "set by Fairlot alone",
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
        "changed in Fairlot alone",
    ),
    "keep it when it is deleted": (
        [{"op": "add", "path": "/metadata/finalizers", "value": ["example.org/kept"]}],
        "owners and finalizers",
    ),
    "take the gate out of its template": (
        [{"op": "remove", "path": "/spec/template/spec/schedulingGates"}],
        "changed in Fairlot alone",
    ),
}


@pytest.mark.parametrize("what", TO_A_JOB)
def test_he_cannot_touch_a_job_of_fairlots(plane: ControlPlane, bob: Api, tenant: str, what: str) -> None:
    path = f"{JOBS.format(tenant)}/gang"
    made = plane.api(FAIRLOT).create(JOBS.format(tenant), fairlots_job("gang", pods=2))
    operations, words = TO_A_JOB[what]
    refused(lambda: bob.patch(path, operations), words, by="fairlot-jobs")
    there = plane.admin.get(path)
    assert there["spec"] == made["spec"]
    assert there["metadata"]["annotations"] == made["metadata"]["annotations"]


def test_he_cannot_stop_or_end_a_running_job_but_delete_it(
    plane: ControlPlane, bob: Api, tenant: str, nodes: list[str]
) -> None:
    path = f"{JOBS.format(tenant)}/single"
    fairlot = plane.api(FAIRLOT)
    fairlot.create(JOBS.format(tenant), fairlots_job("single"))
    fairlot.patch(path, [epoch(1), {"op": "replace", "path": "/spec/suspend", "value": False}])
    wait_for(lambda: running(bob, tenant) == 1, what="it runs")
    refused(
        lambda: bob.patch(path, [{"op": "replace", "path": "/spec/suspend", "value": True}]),
        "spec.suspend",
        by="fairlot-jobs",
    )
    refused(lambda: bob.merge(f"{path}/status", {"status": {"active": 0}}), "(status)", by="fairlot-status")
    bob.merge(path, {"metadata": {"labels": {"he": "may"}}})
    bob.delete(path, propagationPolicy="Background")
    wait_for(lambda: not bob.items(PODS.format(tenant)), what="its pod is gone")
    assert not bob.items(JOBS.format(tenant))


class Gang:
    """A gang of two whose pods wait behind the gate."""

    def __init__(self, plane: ControlPlane, namespace: str, nodes: list[str]) -> None:
        self.fairlot, self.work = plane.api(FAIRLOT), Work(plane.admin, namespace)
        path = f"{self.work.jobs}/gang"
        self.fairlot.create(self.work.jobs, fairlots_job("gang", pods=2))
        place = {"op": "add", "path": "/spec/template/spec/affinity", "value": on_nodes(*nodes[:2])}
        self.fairlot.patch(
            path, [epoch(1), place, {"op": "replace", "path": "/spec/suspend", "value": False}]
        )
        self.pods = self.work.wait_for_pods("gang", 2, "Pending")
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
    "change its epoch": ("", [epoch(5)], "fairlot-pods", "the epoch among them"),
    "take its label away": (
        "",
        [{"op": "remove", "path": "/metadata/labels/fairlot.io~1job"}],
        "fairlot-pods",
        "set by Fairlot alone",
    ),
    "take it away from its Job": (
        "",
        [{"op": "remove", "path": "/metadata/labels/batch.kubernetes.io~1controller-uid"}],
        "fairlot-pods",
        "said by the Job controller alone",
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
        "said by the Job controller alone",
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
        "changed in Fairlot alone",
    ),
    "send it to another node": (
        "",
        [{"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": "gpu-0009"}}],
        "fairlot-pods",
        "changed in Fairlot alone",
    ),
    "let it onto kept nodes": (
        "",
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        "fairlot-pods",
        "changed in Fairlot alone",
    ),
    "put a container into it": (
        "/ephemeralcontainers",
        [{"op": "add", "path": "/spec/ephemeralContainers", "value": LATER}],
        "fairlot-pods",
        "no container is put into a pod of Fairlot",
    ),
    "say how it fares": (
        "/status",
        [{"op": "replace", "path": "/status/phase", "value": "Succeeded"}],
        "fairlot-status",
        "(status)",
    ),
}


def test_he_cannot_touch_a_pod_of_fairlots(gang: Gang, bob: Api) -> None:
    before = bob.get(gang.path)
    for what, (subresource, operations, policy, words) in TO_A_POD.items():
        said = answer(lambda s=subresource, o=operations: bob.patch(gang.path + s, o))
        assert f"ValidatingAdmissionPolicy '{policy}'" in said, f"{what}: {said}"
        assert words in said, f"{what}: {said}"
    after = bob.get(gang.path)
    assert (after["spec"], after["metadata"]) == (before["spec"], before["metadata"])
    bob.merge(gang.path, {"metadata": {"labels": {"he": "may"}}})


def test_he_cannot_take_the_policies_off_his_namespace(bob: Api, admin: Api, tenant: str) -> None:
    """A right to all within a namespace is one to change the namespace itself."""
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
                "set by Fairlot alone",
                by="fairlot-namespaces",
            )
    assert admin.get(path)["metadata"]["labels"] == {**before, "he": "may"}
    # Who rules the cluster may do it.
    admin.merge(path, {"metadata": {"labels": {"pod-security.kubernetes.io/warn": None}}})


def test_nobody_but_the_scheduler_binds_a_pod(plane: ControlPlane, bob: Api, tenant: str) -> None:
    pods = PODS.format(tenant)
    bob.create(pods, pod("his", schedulerName="his-own"))
    to = {"metadata": {"name": "his"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-0000"}}
    for path in (f"{pods}/his/binding", f"/api/v1/namespaces/{tenant}/bindings"):
        for api in (bob, plane.admin):
            refused(
                lambda api=api, path=path: api.create(path, to), "scheduler alone", by="fairlot-placement"
            )
    assert "nodeName" not in bob.get(f"{pods}/his")["spec"]


# --- what nobody may do there ----------------------------------------------------------------------------

UNCONFINED: dict[str, Object] = {
    "privileged": pod("p", container(securityContext={"privileged": True})),
    "capabilities.add": pod("p", container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}})),
    "hostNetwork": pod("p", hostNetwork=True),
    "hostPID": pod("p", hostPID=True),
    "hostIPC": pod("p", hostIPC=True),
    "hostPort": pod("p", container(ports=[{"containerPort": 80, "hostPort": 80}])),
    "hostPath": pod("p", volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
}


def test_what_the_standard_refuses_is_named(bob: Api, tenant: str) -> None:
    for name, made in UNCONFINED.items():
        said = answer(lambda made=made: bob.create(PODS.format(tenant), made))
        assert 'violates PodSecurity "restricted' in said, f"{name}: {said}"
        assert name.removesuffix(".add") in said, f"{name}: {said}"


def test_where_the_standard_is_not_enforced_the_policies_are(
    admin: Api, namespace: str, fairlot: object
) -> None:
    """Even for the cluster's administrators: here a namespace that one of them has labelled by hand."""
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"fairlot.io/tenant": "9"}}})
    pods = f"{PODS.format(namespace)}?dryRun=All"
    wait_for(
        lambda: "fairlot" in answer(lambda: admin.create(pods, pod("p", nodeName="x"))), what="it is known"
    )
    for name, made in UNCONFINED.items():
        refused(lambda made=made: admin.create(pods, made), name, by="fairlot-confined")
    for name, made in UNCONFINED.items():
        if name in ("privileged", "capabilities.add", "hostPort"):
            [inner] = made["spec"]["containers"]
            first = pod("p", initContainers=[{**inner, "name": "first"}])
            refused(lambda first=first: admin.create(pods, first), name, by="fairlot-confined")


def test_other_namespaces_are_none_of_fairlots_business(
    admin: Api, namespace: str, nodes: list[str], fairlot: object
) -> None:
    admin.create(PODS.format(namespace), pod("p", container(gpus=1), labels={JOB: "1"}, nodeName=nodes[-1]))
    wait_for(lambda: running(admin, namespace) == 1, what="it runs")


def test_policies_fit_the_types_that_they_judge(admin: Api, fairlot: object) -> None:
    """The controller manager checks each expression against the fields of these kinds."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    for made in manifests():
        if made["kind"] == "ValidatingAdmissionPolicy":
            name = made["metadata"]["name"]

            def checked(name: str = name) -> Object:
                found = admin.get(f"{path}/{name}")
                status: Object = found.get("status", {})
                return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

            status = wait_for(checked, what=f"{name} was checked")
            assert not status.get("typeChecking", {}).get("expressionWarnings"), name
