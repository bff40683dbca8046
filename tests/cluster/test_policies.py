"""Tests that a user cannot bypass Fairlot, even with every right in the team's namespace."""

from __future__ import annotations

import pytest

from tests.cluster.api import JOBS, PODS, Api, Object, Refused
from tests.cluster.deployed import manifests
from tests.cluster.tenancy import (
    EPOCH,
    GPU,
    JOB,
    answer,
    container,
    own_job,
    pod,
    pod_spec,
    refused,
    running,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APPS = "/apis/apps/v1/namespaces/{}/"
CLAIM = [{"name": "device", "resourceClaimName": "mine"}]
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
FROM_MAP = {"configMapKeyRef": {"name": "some", "key": "devices"}}


# --- what he may not create ------------------------------------------------------------------------------

PODS_REFUSED: dict[str, tuple[Object, str, str]] = {
    "a bare pod with a GPU": (pod("p", container(gpus=1)), "fairlot-gpus", "GPUs are allocated by Fairlot"),
    "a slice of a GPU": (
        pod("p", container(resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}})),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
    ),
    "a GPU in requests and limits": (
        pod("p", container(resources={"requests": {GPU: "1"}, "limits": {GPU: "1"}})),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
    ),
    "a GPU in the second container": (
        pod("p", container(), container("second", gpus=1)),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
    ),
    "a GPU in an init container": (
        pod("p", initContainers=[container("first", gpus=1)]),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
    ),
    "a GPU in a sidecar": (
        pod("p", initContainers=[container("beside", gpus=1, restartPolicy="Always")]),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
    ),
    "a device class as a resource": (
        pod("p", container(resources={"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}})),
        "fairlot-gpus",
        "GPUs are allocated by Fairlot",
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
        "set only by the Job controller",
    ),
    "a pod that is let onto nodes for GPUs": (
        pod("p", tolerations=[{"key": GPU, "operator": "Exists"}]),
        "fairlot-gpus",
        "reserved for GPUs",
    ),
    "a pod that is let onto every node": (
        pod("p", tolerations=[{"operator": "Exists"}]),
        "fairlot-gpus",
        "reserved for GPUs",
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
        # The admission plug-in that checks priority classes learns of a new class with a delay.
        wait_for(
            lambda: "not found" not in answer(lambda: bob.create(f"{PODS.format(tenant)}?dryRun=All", made)),
            what="the runtime class is known",
        )
        refused(lambda: bob.create(PODS.format(tenant), made), "runtime class", by="fairlot-gpus")
    finally:
        admin.delete(f"{path}/nvidia")


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
def test_objects_that_create_pods_with_gpus_are_refused_at_once(bob: Api, tenant: str, kind: str) -> None:
    path, made = CONTROLLERS[kind]
    refused(
        lambda: bob.create(path.format(tenant), made),
        "GPUs are allocated by Fairlot",
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
        return any("GPUs are allocated by Fairlot" in event.get("message", "") for event in events)

    wait_for(told, what="an event says why")
    assert not [found for found in bob.items(PODS.format(tenant)) if "limits" in resources_of(found)]


def resources_of(thing: Object) -> Object:
    found: Object = thing["spec"]["containers"][0]["resources"]
    return found


# --- what he may create ----------------------------------------------------------------------------------


def test_he_may_run_pods_and_jobs_without_gpus(bob: Api, tenant: str, nodes: list[str]) -> None:
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


def test_his_pod_cannot_be_changed_into_one_that_he_may_not_create(bob: Api, tenant: str) -> None:
    """Proves that a user's existing pod cannot be changed into a forbidden one.

    Labels can also be changed by writes to the status subresource, and tolerations can be added later.
    """
    path = f"{PODS.format(tenant)}/his"
    bob.create(PODS.format(tenant), pod("his", schedulerName="nobody"))
    for subresource in ("", "/status"):
        for labels, words in (
            ({JOB: "1"}, "set only by Fairlot"),
            ({"batch.kubernetes.io/controller-uid": "some-uid"}, "set only by the Job controller"),
        ):
            change = {"metadata": {"labels": labels}}
            said = answer(lambda s=subresource, c=change: bob.merge(path + s, c))
            assert words in said or "'fairlot-status'" in said, f"{labels} by {subresource}: {said}"
    everywhere = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
    refused(lambda: bob.patch(path, everywhere), "reserved for GPUs", by="fairlot-pods")
    elsewhere = {"key": "example.org/slow", "operator": "Exists"}
    bob.patch(path, [{"op": "add", "path": "/spec/tolerations/-", "value": elsewhere}])
    jobs = JOBS.format(tenant)
    bob.create(jobs, own_job("his", suspend=True))
    change = {"metadata": {"annotations": {EPOCH: "0"}}}
    refused(lambda: bob.merge(f"{jobs}/his/status", change), "set only by Fairlot", by="fairlot-jobs")


JOBS_REFUSED = {
    "by a label": {"metadata": {"labels": {JOB: "1"}}},
    "by an annotation": {"metadata": {"annotations": {EPOCH: "0"}}},
    "by a label of its pods": {"spec": {"template": {"metadata": {"labels": {JOB: "1"}}}}},
    "by an annotation of its pods": {"spec": {"template": {"metadata": {"annotations": {EPOCH: "0"}}}}},
}


@pytest.mark.parametrize("how", JOBS_REFUSED)
def test_his_job_cannot_pretend_to_be_fairlots(bob: Api, tenant: str, how: str) -> None:
    """Proves that a user's Job cannot look like one of Fairlot's, neither when it is created nor by a later change.

    A later change is possible because the template of a suspended Job can be changed.
    """
    jobs = JOBS.format(tenant)
    bob.create(jobs, own_job("his", suspend=True))
    refused(lambda: bob.merge(f"{jobs}/his", JOBS_REFUSED[how]), "set only by Fairlot", by="fairlot-jobs")
    made = own_job("second", suspend=True)
    made["metadata"] |= JOBS_REFUSED[how].get("metadata", {})
    made["spec"]["template"] |= JOBS_REFUSED[how].get("spec", {}).get("template", {})
    refused(lambda: bob.create(jobs, made), "set only by Fairlot", by="fairlot-jobs")


# --- what no one may do there ----------------------------------------------------------------------------

UNCONFINED: dict[str, Object] = {
    "privileged": pod("p", container(securityContext={"privileged": True})),
    "capabilities.add": pod("p", container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}})),
    "hostNetwork": pod("p", hostNetwork=True),
    "hostPID": pod("p", hostPID=True),
    "hostIPC": pod("p", hostIPC=True),
    "hostPort": pod("p", container(ports=[{"containerPort": 80, "hostPort": 80}])),
    "hostPath": pod("p", volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
}


def test_the_standard_names_what_it_refuses(bob: Api, tenant: str) -> None:
    for name, made in UNCONFINED.items():
        said = answer(lambda made=made: bob.create(PODS.format(tenant), made))
        assert 'violates PodSecurity "restricted' in said, f"{name}: {said}"
        assert name.removesuffix(".add") in said, f"{name}: {said}"


def test_the_policies_hold_where_the_standard_is_not_enforced(
    admin: Api, namespace: str, fairlot: object
) -> None:
    """Proves that Fairlot's policies refuse unconfined pods in a namespace without the pod security standard
    `restricted`.

    They apply even to the cluster's admins.
    """
    # as an admin of the cluster may label a namespace by hand
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


def test_the_policies_do_not_apply_to_other_namespaces(
    admin: Api, namespace: str, nodes: list[str], fairlot: object
) -> None:
    admin.create(PODS.format(namespace), pod("p", container(gpus=1), labels={JOB: "1"}, nodeName=nodes[-1]))
    wait_for(lambda: running(admin, namespace) == 1, what="it runs")


def test_policies_match_the_types_that_they_check(admin: Api, fairlot: object) -> None:
    """Proves that the controller manager finds no type errors in the CEL expressions of the policies."""
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
