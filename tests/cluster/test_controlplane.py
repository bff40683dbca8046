"""Tests that the test cluster is a real Kubernetes and behaves as the backend expects."""

from __future__ import annotations

import ssl
import stat
from collections import Counter

import httpx
import kubernetes
import pytest

from tests.cluster.api import NODES, Api, Object, Refused
from tests.cluster.binaries import KUBERNETES
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobs import EPOCH, GATE, Work, fenced, on_nodes, placed, suspended
from tests.cluster.nodes import A100, V100, condition, usable
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CLERK = """
apiVersion: v1
kind: ServiceAccount
metadata: {{name: clerk, namespace: {namespace}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: clerk, namespace: {namespace}}}
rules:
  - {{apiGroups: [batch], resources: [jobs], verbs: [get, list]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: clerk, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: clerk}}
subjects: [{{kind: ServiceAccount, name: clerk, namespace: {namespace}}}]
"""


@pytest.fixture
def clerk(plane: ControlPlane, namespace: str) -> str:
    """Creates a service account that may read the Jobs of the namespace, and returns its user name."""
    plane.admin.apply(CLERK.format(namespace=namespace))
    return f"system:serviceaccount:{namespace}:clerk"


def test_every_component_runs_and_the_server_reports_the_pinned_version(plane: ControlPlane) -> None:
    version = plane.admin.get("/version")
    assert version["gitVersion"] == KUBERNETES.version
    assert f"{version['major']}.{version['minor']}" == KUBERNETES.release
    for component in (plane.etcd, plane.apiserver, plane.controller_manager, plane.scheduler):
        assert component.running
        assert component.ready()


def test_tokens_are_random_and_readable_only_by_their_owner(plane: ControlPlane) -> None:
    tokens = plane.credentials.tokens
    assert len(set(tokens.values())) == len(tokens)
    assert all(len(token) >= 40 for token in tokens.values())
    secret = [plane.credentials.token_file, plane.credentials.signing_key, plane.kubeconfig("bob")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_a_request_without_a_valid_token_is_refused(plane: ControlPlane) -> None:
    url = f"{plane.server}{NODES}"
    trusted = ssl.create_default_context(cafile=str(plane.certificates / "apiserver.crt"))
    with httpx.Client(verify=trusted, trust_env=False) as nobody:
        assert nobody.get(url).status_code == 403  # as the user system:anonymous
        assert nobody.get(url, headers={"Authorization": "Bearer of-nothing"}).status_code == 401


def test_rbac_refuses_what_was_not_granted(plane: ControlPlane, clerk: str, work: Work) -> None:
    api = plane.api(clerk)
    work.create("granted")
    assert [job["metadata"]["name"] for job in api.items(work.jobs)] == ["granted"]
    for attempt in (
        lambda: Work(api, "default").read("granted"),
        lambda: api.items(work.all_pods),
        lambda: api.items(NODES),
        lambda: api.patch(f"{work.jobs}/granted", [suspended(False)]),
        lambda: api.delete(f"{work.jobs}/granted"),
        lambda: api.items(work.all_pods.replace("pods", "secrets")),
    ):
        with pytest.raises(Refused) as refusal:
            attempt()
        assert (refusal.value.code, refusal.value.reason) == (403, "Forbidden")
        assert clerk in refusal.value.message


def test_a_person_has_no_rights_until_a_manifest_grants_some(plane: ControlPlane, work: Work) -> None:
    with pytest.raises(Refused, match='User "bob" cannot list'):
        plane.api("bob").items(work.jobs)


def test_the_official_client_works_with_a_kubeconfig(plane: ControlPlane, clerk: str, work: Work) -> None:
    work.create("read-by-client")
    kubeconfig = str(plane.kubeconfig(clerk))
    with kubernetes.config.new_client_from_config(kubeconfig) as client:  # type: ignore[no-untyped-call]
        listed = kubernetes.client.BatchV1Api(client).list_namespaced_job(work.jobs.split("/")[-2])
    assert [job.metadata.name for job in listed.items if job.metadata] == ["read-by-client"]


def test_twenty_nodes_of_eight_gpus_are_ready(admin: Api, nodes: list[str]) -> None:
    assert len(nodes) == 20
    assert set(nodes) <= usable(admin)
    found = [node for node in admin.items(NODES) if node["metadata"]["name"] in nodes]
    assert Counter(node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in found) == {
        A100: 15,
        V100: 5,
    }
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in found} == {"8"}


def test_one_fenced_patch_starts_a_suspended_job_on_its_nodes_and_it_completes(
    work: Work, nodes: list[str]
) -> None:
    job = work.create("gang", pods=4, gpus=8, behaviour={"run-for": "1"})
    assert not work.pods("gang")
    work.start(job, *nodes[2:6])
    done = work.wait_for_condition("gang", "Complete")
    assert (done["status"]["succeeded"], done["status"]["completedIndexes"]) == (4, "0-3")
    pods = work.pods("gang")
    # Each pod needs all eight GPUs of a node, so each node has one pod.
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == nodes[2:6]
    assert {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods} == set(
        "0123"
    )
    assert done["metadata"]["annotations"][EPOCH] == "1"


def test_a_failing_test_operation_is_a_422_and_changes_nothing(work: Work, nodes: list[str]) -> None:
    work.create("fenced")
    job = work.wait_for_condition("fenced", "Suspended")  # after that, the Job controller writes nothing more
    late = fenced(job, placed(on_nodes(nodes[0])), suspended(False), epoch=7)
    stranger = fenced({"metadata": {"name": "fenced", "uid": "another"}}, suspended(False), epoch=0)
    for operations in (late, stranger):
        with pytest.raises(Refused) as refusal:
            work.change("fenced", operations)
        assert (refusal.value.code, refusal.value.reason) == (422, "Invalid")
    assert work.read("fenced")["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]
    work.start(job, nodes[0])
    with pytest.raises(Refused) as refusal:  # repeats the same request, as after a lost answer
        work.start(job, nodes[0])
    assert refusal.value.code == 422


def test_a_suspended_job_holds_its_gpus_until_the_pods_have_ended(work: Work, nodes: list[str]) -> None:
    job = work.create("slice", pods=2, gpus=8, behaviour={"stop-after": "600"}, grace=600)
    work.start(job, nodes[0], nodes[1])
    work.wait_for_pods("slice", 2, "Running")
    other = work.create("next", gpus=8)
    work.suspend(job, epoch=1)
    wait_for(lambda: work.read("slice")["status"].get("terminating") == 2, what="two pods terminate")
    assert not work.read("slice")["status"].get("active")
    work.start(other, nodes[0])
    waiting = work.wait_for_pods("next", 1, "Pending")
    assert len(work.pods("slice")) == 2  # the pods still terminate, and no other pod has their GPUs
    assert not waiting[0]["spec"].get("nodeName")
    work.let_end("slice")
    drained = work.wait_until_drained("slice")
    assert not drained["status"].get("failed")  # a suspension does not count as a failure
    assert "startTime" not in drained["status"]
    assert work.wait_for_pods("next", 1, "Running")[0]["spec"]["nodeName"] == nodes[0]


def test_no_pod_outlives_its_grace_period(work: Work, nodes: list[str]) -> None:
    job = work.create("stubborn", behaviour={"stop-after": "3600"}, grace=1)
    work.start(job, nodes[3])
    work.wait_for_pods("stubborn", 1, "Running")
    work.suspend(job, epoch=1)
    work.wait_until_drained("stubborn")


def test_a_job_that_ran_is_moved_and_resized_as_it_resumes(work: Work, nodes: list[str]) -> None:
    job = work.create("mover", pods=2, gpus=4)
    work.start(job, nodes[4])
    assert {pod["spec"]["nodeName"] for pod in work.wait_for_pods("mover", 2, "Running")} == {nodes[4]}
    work.suspend(job, epoch=1)
    work.wait_until_drained("mover")
    container = "/spec/template/spec/containers/0/resources"
    bigger = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    work.change(
        "mover",
        fenced(
            job,
            placed(on_nodes(nodes[17], nodes[18])),
            {"op": "replace", "path": container, "value": bigger},
            suspended(False),
            epoch=2,
        ),
    )
    pods = work.wait_for_pods("mover", 2, "Running")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == [nodes[17], nodes[18]]
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods} == {"8"}


def test_gated_pods_wait_and_are_ungated_one_by_one(work: Work, nodes: list[str]) -> None:
    job = work.create("gated", pods=3, gpus=8, gated=True)
    work.start(job, *nodes[:15])
    pods = work.wait_for_pods("gated", 3, "Pending")
    places = dict(zip((pod["metadata"]["name"] for pod in pods), nodes[8:11], strict=True))
    for number, pod in enumerate(pods, start=1):
        let_through = [
            {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
            {
                "op": "add",
                "path": "/spec/nodeSelector",
                "value": {"kubernetes.io/hostname": places[pod["metadata"]["name"]]},
            },
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ]
        work.api.patch(work.pod(pod), let_through)
        running = work.wait_for_pods("gated", number, "Running")
        gates = [pod for pod in work.pods("gated") if pod["spec"].get("schedulingGates")]
        assert len(gates) == 3 - number
        assert all("nodeName" not in pod["spec"] for pod in gates)
        assert all(pod["spec"]["nodeName"] == places[pod["metadata"]["name"]] for pod in running)
        with pytest.raises(Refused) as refusal:  # repeats the request, as after a lost answer
            work.api.patch(work.pod(pod), let_through)
        assert refusal.value.code == 422


def test_a_gang_whose_gates_never_opened_is_stopped_and_nothing_ran(work: Work, nodes: list[str]) -> None:
    job = work.create("taken-back", pods=3, gated=True)
    work.start(job, *nodes)
    work.wait_for_pods("taken-back", 3, "Pending")
    work.suspend(job, epoch=1)
    drained = work.wait_until_drained("taken-back")
    assert not drained["status"].get("failed")
    assert not drained["status"].get("succeeded")


def test_a_program_that_fails_makes_its_job_fail_with_its_exit_code(work: Work, nodes: list[str]) -> None:
    job = work.create("broken", behaviour={"run-for": "0.2", "exit-code": "3"})
    work.start(job, nodes[6])
    failed = work.wait_for_condition("broken", "Failed")
    assert failed["status"]["failed"] == 1
    ended = work.pods("broken")[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")


def test_a_pod_reports_an_image_that_does_not_exist(work: Work, nodes: list[str]) -> None:
    job = work.create("no-image", image="missing/image")
    work.start(job, nodes[6])

    def reasons() -> list[str]:
        statuses = [
            status for pod in work.pods("no-image") for status in pod["status"].get("containerStatuses", [])
        ]
        return [status["state"]["waiting"]["reason"] for status in statuses]

    assert wait_for(reasons, what="the pod says why it waits") == ["ImagePullBackOff"]
    work.suspend(job, epoch=1)
    work.wait_until_drained("no-image")


def test_pods_are_ready_again_after_their_nodes_were_unreachable(work: Work, nodes: list[str]) -> None:
    """Proves that simulated kubelets mark pods as ready again after something else marked them as not ready.

    The controller manager marks them as not ready when their node has been silent for a minute.
    """
    work.start(work.create("serves"), nodes[0])
    [pod] = work.wait_for_pods("serves", 1, "Running")
    path = work.pod(pod)
    conditions = [
        one | ({"status": "False"} if one["type"] == "Ready" else {}) for one in pod["status"]["conditions"]
    ]
    told = work.api.merge(f"{path}/status", {"status": {"conditions": conditions}})
    assert condition(told, "Ready") == "False"
    wait_for(lambda: condition(work.api.get(path), "Ready") == "True", what="it is ready again")


def test_the_audit_log_has_each_request_with_its_user_and_answer(
    plane: ControlPlane, clerk: str, work: Work, nodes: list[str], namespace: str
) -> None:
    job = work.create("watched", behaviour={"run-for": "0.2"})
    work.start(job, nodes[10])
    with pytest.raises(Refused):
        work.start(job, nodes[11])
    with pytest.raises(Refused):
        plane.api(clerk).delete(f"{work.jobs}/watched")
    work.wait_for_condition("watched", "Complete")

    def patches() -> list[Object]:
        found = plane.audited(resource="jobs", verb="patch", namespace=namespace, user="test-admin")
        return found if len(found) == 2 else []

    first, second = wait_for(patches, what="two patches are in the audit log")
    assert [event["responseStatus"]["code"] for event in (first, second)] == [200, 422]
    assert first["requestObject"][-1] == suspended(False)
    (refused,) = plane.audited(resource="jobs", verb="delete", namespace=namespace, user=clerk)
    assert refused["responseStatus"]["code"] == 403
    # The scheduler's binding request in the audit log shows which pod ran on which node.
    (bound,) = plane.audited(subresource="binding", namespace=namespace)
    assert bound["user"]["username"] == "system:kube-scheduler"
    assert bound["requestObject"]["target"]["name"] == nodes[10]
    assert not plane.audited(resource="leases")
