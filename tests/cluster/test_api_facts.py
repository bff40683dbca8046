"""Tests of facts about Kubernetes 1.36 that the backend relies on. They fail for a release that changes one of these
facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.api import Api, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobs import GATE, TEMPLATE, Work, fenced, on_nodes, placed, suspended
from tests.cluster.nodes import condition
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HOSTNAME = "kubernetes.io/hostname"


def gates(*names: str) -> Mapping[str, Any]:
    return {
        "op": "add",
        "path": f"{TEMPLATE}/schedulingGates",
        "value": [{"name": name} for name in names],
    }


def pod(name: str, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "example/none"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def gated_pod(name: str, **spec: Any) -> Object:
    return pod(name, schedulingGates=[{"name": GATE}], **spec)


def refused(call: Any, *, code: int, says: str) -> None:
    with pytest.raises(Refused, match=says) as refusal:
        call()
    assert refusal.value.code == code


def test_a_failed_test_operation_is_not_named_but_an_invalid_field_is(work: Work) -> None:
    """Proves that the API server answers 422 both for a failed `test` operation of a JSON Patch and for an invalid
    field.

    The answer names the invalid field, but not the failed `test` operation. So a client must read the object
    to learn which `test` operation failed.
    """
    job = work.create("named")
    with pytest.raises(Refused) as fence:
        work.change("named", fenced(job, suspended(False), epoch=3))
    assert (fence.value.code, fence.value.reason) == (422, "Invalid")
    assert "causes" not in fence.value.status.get("details", {})
    wrong = {"op": "replace", "path": "/spec/completionMode", "value": "NonIndexed"}
    with pytest.raises(Refused) as nonsense:
        work.change("named", fenced(job, wrong, epoch=0))
    assert (nonsense.value.code, nonsense.value.reason) == (422, "Invalid")
    assert nonsense.value.status["details"]["causes"][0]["field"] == "spec.completionMode"


def test_a_running_job_cannot_be_moved(work: Work, nodes: list[str]) -> None:
    job = work.create("fixed")
    work.start(job, nodes[0])
    work.wait_for_pods("fixed", 1, "Running")
    elsewhere = fenced(job, placed(on_nodes(nodes[1])), epoch=1)
    refused(lambda: work.change("fixed", elsewhere), code=422, says="field is immutable")


def test_a_job_cannot_be_moved_by_the_request_that_suspends_it(work: Work, nodes: list[str]) -> None:
    job = work.create("hasty")
    work.start(job, nodes[0])
    work.wait_for_pods("hasty", 1, "Running")
    both = fenced(job, suspended(True), placed(on_nodes(nodes[1])), epoch=1)
    refused(lambda: work.change("hasty", both), code=422, says="field is immutable")


def test_a_suspended_job_can_be_moved_while_its_pods_still_terminate(work: Work, nodes: list[str]) -> None:
    """Proves that a resumed Job creates its new pod only after the old one has ended (podReplacementPolicy: Failed).

    Until then `active` is 0, although the Job still holds GPUs.
    """
    job = work.create("early", behaviour={"stop-after": "600"}, grace=600)
    work.start(job, nodes[0])
    work.wait_for_pods("early", 1, "Running")
    work.suspend(job, epoch=1)
    work.wait_for_condition("early", "Suspended")
    terminating = work.read("early")["status"]
    assert (terminating.get("active", 0), terminating.get("terminating")) == (0, 1)
    work.change("early", fenced(job, placed(on_nodes(nodes[1])), suspended(False), epoch=2))
    # The Job is resumed, but its second pod is created only after the first pod has ended.
    wait_for(lambda: condition(work.read("early"), "Suspended") == "False", what="it is resumed")
    assert [found["spec"]["nodeName"] for found in work.pods("early")] == [nodes[0]]
    work.let_end("early")
    wait_for(
        lambda: [found["spec"].get("nodeName") for found in work.pods("early")] == [nodes[1]],
        what="the only pod is on its new node",
    )


def test_suspending_clears_the_start_time(work: Work, nodes: list[str]) -> None:
    job = work.create("clock")
    work.start(job, nodes[0])
    work.wait_for_pods("clock", 1, "Running")
    wait_for(lambda: work.read("clock")["status"].get("startTime"), what="the Job controller says since when")
    work.suspend(job, epoch=1)
    assert "startTime" not in work.wait_until_drained("clock")["status"]


def test_gates_can_be_added_to_a_suspended_jobs_template_and_removed(work: Work, nodes: list[str]) -> None:
    job = work.create("gates")
    work.change("gates", fenced(job, gates(GATE), placed(on_nodes(nodes[0])), suspended(False), epoch=0))
    (waiting,) = work.wait_for_pods("gates", 1, "Pending")
    assert waiting["spec"]["schedulingGates"] == [{"name": GATE}]
    work.suspend(job, epoch=1)
    work.wait_until_drained("gates")
    work.change("gates", fenced(job, gates(), suspended(False), epoch=2))
    work.wait_for_pods("gates", 1, "Running")


def test_a_gated_pods_nodes_may_be_narrowed_while_ungating_but_not_widened(
    work: Work, nodes: list[str]
) -> None:
    created = work.api.create(work.all_pods, gated_pod("narrow", affinity=on_nodes(nodes[0], nodes[1])))
    path = work.pod(created)
    refused(
        lambda: work.api.patch(
            path, [{"op": "replace", "path": "/spec/affinity", "value": on_nodes(*nodes[:3])}]
        ),
        code=422,
        says="only additions are allowed",
    )
    selector = {"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: nodes[1]}}
    work.api.patch(path, [selector, {"op": "remove", "path": "/spec/schedulingGates/0"}])
    bound = wait_for(lambda: work.api.get(path)["spec"].get("nodeName"), what="the pod is bound")
    assert bound == nodes[1]
    refused(
        lambda: work.api.patch(
            path, [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
        ),
        code=422,
        says="only deletion is allowed",
    )


def test_a_gate_that_is_added_later_is_refused(work: Work) -> None:
    created = work.api.create(work.all_pods, pod("plain", schedulerName="nobody"))
    refused(
        lambda: work.api.patch(
            work.pod(created), [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
        ),
        code=422,
        says="only deletion is allowed",
    )


def test_binding_refuses_a_gated_pod_another_uid_and_a_second_time(work: Work, nodes: list[str]) -> None:
    def bind(to: Object, **precondition: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": nodes[0]}
        metadata = {"name": to["metadata"]["name"], **precondition}
        work.api.create(f"{work.pod(to)}/binding", {"metadata": metadata, "target": target})

    waiting = work.api.create(work.all_pods, gated_pod("gated", schedulerName="nobody"))
    refused(lambda: bind(waiting), code=409, says="non-empty .spec.schedulingGates")
    free = work.api.create(work.all_pods, pod("free", schedulerName="nobody"))
    refused(lambda: bind(free, uid="another"), code=409, says="[Pp]recondition")
    bind(free, uid=free["metadata"]["uid"])
    refused(lambda: bind(free), code=409, says="already assigned")


GUARD = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: gates-{namespace}}}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    resourceRules:
      - {{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}}
  matchConditions:
    - name: has-our-gate
      expression: oldObject.spec.?schedulingGates.orValue([]).exists(gate, gate.name == "{gate}")
  validations:
    - expression: >-
        object.spec.?schedulingGates.orValue([]).exists(gate, gate.name == "{gate}")
        || request.userInfo.username == "test-admin"
      message: only the scheduler may let this pod through
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: gates-{namespace}}}
spec: {{policyName: gates-{namespace}, validationActions: [Deny]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: bob-edits, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}}]
"""


def test_a_policy_keeps_the_gate_from_a_user_who_may_edit_pods(
    plane: ControlPlane, work: Work, namespace: str
) -> None:
    guards = plane.admin.apply(GUARD.format(namespace=namespace, gate=GATE))
    created = work.api.create(work.all_pods, gated_pod("guarded", schedulerName="nobody"))
    path, bob = work.pod(created), plane.api("bob")
    bob.merge(path, {"metadata": {"labels": {"he": "may"}}})
    taking = [{"op": "remove", "path": "/spec/schedulingGates/0"}]

    def attempt() -> Refused | None:
        """Tries as Bob, in a dry run, to remove the pod's gate. Returns the refusal, or None if the server accepts the
        request because it has not loaded the policy yet, which takes about a second."""
        try:
            bob._patch(f"{path}?dryRun=All", "json-patch", taking)
        except Refused as refusal:
            return refusal
        return None

    refusal = wait_for(attempt, what="the policy holds")
    assert refusal
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert "only the scheduler may let this pod through" in refusal.message
    assert work.api.get(path)["spec"]["schedulingGates"] == [{"name": GATE}]
    plane.admin.patch(path, taking)
    assert "schedulingGates" not in plane.admin.get(path)["spec"]
    for guard in guards[:2]:
        plane.admin.delete(plane.admin.path_of(guard))


def test_native_gangs_are_off_by_default(admin: Api) -> None:
    """Proves that PodGroups are off by default. So Fairlot may use PodGroups if a cluster offers them, but must not
    require them."""
    groups = {group["name"]: group for group in admin.get("/apis")["groups"]}
    versions = {version["version"] for version in groups["scheduling.k8s.io"]["versions"]}
    assert versions == {"v1"}
    assert {entry["kind"] for entry in admin.get("/apis/scheduling.k8s.io/v1")["resources"]} == {
        "PriorityClass"
    }


def test_a_completed_job_keeps_its_result_when_it_is_suspended_too_late(work: Work, nodes: list[str]) -> None:
    job = work.create("late", behaviour={"run-for": "0.2"})
    work.start(job, nodes[0])
    work.wait_for_condition("late", "Complete")
    work.suspend(job, epoch=1)
    done = work.read("late")
    assert condition(done, "Complete") == "True"
    assert done["status"]["succeeded"] == 1
    assert condition(done, "Suspended") != "True"


def test_a_job_is_created_once_and_deleted_only_by_its_uid(work: Work) -> None:
    job = work.create("once")
    refused(lambda: work.create("once"), code=409, says="already exists")
    path = f"{work.jobs}/once"
    refused(lambda: work.api.delete(path, preconditions={"uid": "another"}), code=409, says="[Pp]recondition")
    work.api.delete(path, preconditions={"uid": job["metadata"]["uid"]}, propagationPolicy="Background")
    refused(lambda: work.read("once"), code=404, says="not found")


def test_a_quota_of_two_pods_leaves_a_gang_incomplete_and_an_event_says_so(
    work: Work, nodes: list[str], namespace: str
) -> None:
    work.api.apply(
        f"""
        apiVersion: v1
        kind: ResourceQuota
        metadata: {{name: two, namespace: {namespace}}}
        spec: {{hard: {{requests.nvidia.com/gpu: "2"}}}}
        """
    )
    wait_for(
        lambda: (
            work.api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/two").get("status", {}).get("used")
        ),
        what="the quota counts",
    )
    job = work.create("short", pods=5, gated=True)
    work.start(job, *nodes)
    work.wait_for_pods("short", 2, "Pending")

    def told() -> list[Object]:
        events = work.api.items(f"/api/v1/namespaces/{namespace}/events")
        return [event for event in events if "exceeded quota" in event.get("message", "")]

    assert wait_for(told, what="an event says why")[0]["involvedObject"]["name"] == "short"
    work.suspend(job, epoch=1)
    work.wait_until_drained("short")
