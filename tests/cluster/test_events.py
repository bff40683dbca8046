"""Tests that events of a real cluster, such as refusals of a gang's pods, appear on the timelines of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.backends.base import End, Gang, Phase
from scheduling.backends.kubernetes import objects
from tests.cluster.api import JOBS, NODES, Api, Refused
from tests.cluster.backend_rig import Rig, Rigging, rigs
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NO_SLEEPERS = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: no-sleepers-{namespace}}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
  validations:
    - expression: "!('sleep' in object.spec.containers[0].command)"
      message: nobody sleeps on our GPUs
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: no-sleepers-{namespace}}}
spec:
  policyName: no-sleepers-{namespace}
  validationActions: [Deny]
  matchResources:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
"""


@pytest.fixture
def rigging(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rigging]:
    with rigs(admin, fairlot, tenant, tmp_path) as make:
        yield make


def said(rig: Rig, gang: Gang) -> list[str]:
    return [event.text for event in rig.cluster_events if event.job_id == gang.job_id]


def wait_for_word(rig: Rig, gang: Gang, *words: str) -> str:
    def found() -> str:
        return next((text for text in said(rig, gang) if all(word in text for word in words)), "")

    return wait_for(found, what=lambda: f"{words} in {said(rig, gang)}; {rig.seen.get(gang.token)}")


def put_quota(admin: Api, namespace: str, gpus: int) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    admin.create(
        path, {"metadata": {"name": "few"}, "spec": {"hard": {"requests.nvidia.com/gpu": str(gpus)}}}
    )
    wait_for(lambda: admin.get(f"{path}/few").get("status", {}).get("used"), what="the quota counts")


def test_a_quota_that_denies_a_pod_is_named_with_its_figures(
    rigging: Rigging, admin: Api, tenant: str, nodes: list[str]
) -> None:
    rig = rigging(gather_seconds=5.0)
    put_quota(admin, tenant, 2)
    gang = rig.start(rig.gang(nodes[0], nodes[1], nodes[2]))
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "2 of the job's 3 pods were created" in ended.message
    assert "the quota few denies a pod: requests.nvidia.com/gpu=1 requested" in ended.message
    wait_for_word(rig, gang, "the quota few denies a pod", "requests.nvidia.com/gpu=2 allowed")
    assert Phase.RUNNING not in {seen.phase for seen in rig.told}


def test_a_policy_that_denies_its_pods_ends_the_start_at_once(
    rigging: Rigging, admin: Api, tenant: str, nodes: list[str]
) -> None:
    rig = rigging(gather_seconds=1e9)
    admin.apply(NO_SLEEPERS.format(namespace=tenant))
    try:
        wait_until_denied(admin, tenant)
        gang = rig.start(rig.gang(nodes[0], nodes[1], command=["sleep", "1"]))
        ended = rig.wait(gang)
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            admin.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/no-sleepers-{tenant}")
    assert ended.end is End.START_FAILED
    assert ended.message.startswith(f"the policy no-sleepers-{tenant} denies the job's pods: ")
    assert "nobody sleeps on our GPUs" in ended.message
    wait_for_word(rig, gang, "nobody sleeps on our GPUs")


def wait_until_denied(admin: Api, namespace: str) -> None:
    """Waits until the API server enforces the test's policy, which takes a moment after the policy was created."""
    container = {
        "name": "main",
        "image": "example/none",
        "command": ["sleep"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    secure = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": secure, "automountServiceAccountToken": False}
    pod = {"metadata": {"name": "probe"}, "spec": spec}

    def denied() -> bool:
        try:
            admin.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except Refused as refusal:
            return "nobody sleeps" in str(refusal)
        return False

    wait_for(denied, what="the policy is in force")


def test_a_pod_that_fits_nowhere_says_so_while_it_waits(rigging: Rigging, nodes: list[str]) -> None:
    rig = rigging()
    gang = rig.start(rig.gang(nodes[0], gpus=9))
    wait_for_word(rig, gang, "worker 0: no node accepts the pod", "Insufficient nvidia.com/gpu")
    assert not any("preemption" in text for text in said(rig, gang))
    rig.stop(gang)
    rig.wait(gang)


def test_a_node_that_is_no_longer_ready_is_reported_to_jobs_on_it(
    rigging: Rigging, admin: Api, nodes: list[str]
) -> None:
    """Proves that an event about a node that is no longer ready appears on the timelines of jobs on this node.

    The test creates the event itself, because kwok's nodes do not fail.
    """
    rig = rigging()
    here, elsewhere = rig.start(rig.gang(nodes[0])), rig.start(rig.gang(nodes[1], job=2))
    rig.wait(here, Phase.RUNNING)
    rig.wait(elsewhere, Phase.RUNNING)
    node = admin.get(f"{NODES}/{nodes[0]}")
    job = f"{JOBS.format(rig.namespace)}/{objects.job_name(1)}"
    # The Job controller sets startTime after it has created the pods, so pods may run before it is set.
    began = wait_for(lambda: rig.admin.get(job)["status"].get("startTime"), what="the Job has begun")
    event = {
        "metadata": {"generateName": "oom-"},
        "involvedObject": {"kind": "Node", "name": nodes[0], "uid": node["metadata"]["uid"]},
        "type": "Warning",
        "reason": "SystemOOM",
        "message": "System OOM encountered, victim process: python",
        "lastTimestamp": began,
    }
    admin.create("/api/v1/namespaces/default/events", event)
    wait_for_word(rig, here, f"the node {nodes[0]} ran out of memory", "victim process: python")
    assert said(rig, elsewhere) == []
    for gang in (here, elsewhere):
        rig.stop(gang)
        rig.wait(gang)


def test_a_new_watcher_gets_the_same_events_with_the_same_sources(rigging: Rigging, nodes: list[str]) -> None:
    first = rigging()
    gang = first.start(first.gang(nodes[0], gpus=9))
    wait_for_word(first, gang, "no node accepts the pod")
    second = rigging()
    wait_for_word(second, gang, "no node accepts the pod")
    sources = [{event.source for event in rig.cluster_events} for rig in (first, second)]
    assert sources[0] & sources[1]
    first.stop(gang)
    first.wait(gang)
