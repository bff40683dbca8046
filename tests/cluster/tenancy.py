"""Builds pods and Jobs for teams' namespaces, which enforce the pod security standard `restricted`.

Also contains assertions about refusals of such objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.cluster.api import PODS, Api, Object, Refused

JOB, EPOCH, TOKEN, GATE = "fairlot.io/job", "fairlot.io/epoch", "fairlot.io/token", "fairlot.io/placement"
GPU = "nvidia.com/gpu"
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(name: str = "main", *, gpus: int = 0, **more: Any) -> Object:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {
        "name": name,
        "image": "example/none",
        "resources": resources,
        "securityContext": CONFINED,
        **more,
    }


def pod_spec(*containers: Object, **more: Any) -> Object:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": list(containers) or [container()],
        **more,
    }


def pod(
    name: str,
    *containers: Object,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Returns a pod without Fairlot's labels. The pod has GPUs only if its containers request them."""
    metadata = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": pod_spec(*containers, **spec)}


def fairlots_job(name: str, *, pods: int = 1, gpus: int = 1) -> Object:
    """Returns a gang's Job as Fairlot creates it: suspended, and with a scheduling gate if it has several pods."""
    marks = {"labels": {JOB: "1"}, "annotations": {EPOCH: "0"}}
    gates = {"schedulingGates": [{"name": GATE}]} if pods > 1 else {}
    return {
        "metadata": {"name": name, "labels": {JOB: "1"}, "annotations": {EPOCH: "0", TOKEN: "t0"}},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "podReplacementPolicy": "Failed",
            "backoffLimit": 0,
            "template": {
                "metadata": marks,
                "spec": pod_spec(container(gpus=gpus), serviceAccountName="fairlot-job", **gates),
            },
        },
    }


def fairlots_pod(name: str, *containers: Object, **spec: Any) -> Object:
    """Returns a pod without a Job, as Fairlot creates it for a job of one worker."""
    return pod(
        name,
        *(containers or [container(gpus=1)]),
        labels={JOB: "1"},
        serviceAccountName="fairlot-job",
        **spec,
    )


def own_job(name: str, spec: Object | None = None, **job: Any) -> Object:
    """Returns a Job as a user would create it without Fairlot."""
    return {
        "metadata": {"name": name},
        "spec": {"template": {"spec": spec or pod_spec()}, **job},
    }


def epoch(value: int) -> Object:
    """Returns the JSON Patch operation by which Fairlot sets a Job's epoch."""
    return {"op": "replace", "path": "/metadata/annotations/fairlot.io~1epoch", "value": str(value)}


def running(api: Api, namespace: str) -> int:
    """Returns the number of running pods in the namespace."""
    return sum(found["status"].get("phase") == "Running" for found in api.items(PODS.format(namespace)))


def answer(call: Callable[[], Any]) -> str:
    """Calls `call`, which makes a request. Returns the message of the refusal, or "" if the request was accepted."""
    try:
        call()
    except Refused as refusal:
        return refusal.message
    return ""


def refused(call: Callable[[], Any], *words: str, by: str) -> None:
    """Asserts that the policy `by` refuses the request that `call` makes, and that the message contains the given
    words."""
    with pytest.raises(Refused) as refusal:
        call()
    said = refusal.value
    assert (said.code, said.reason) == (403, "Forbidden"), said.message
    assert f"ValidatingAdmissionPolicy '{by}'" in said.message
    for word in words:
        assert word in said.message
