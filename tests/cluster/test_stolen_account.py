"""Tests what a thief with a copy of Fairlot's token can and cannot do, and that a team's user cannot get GPUs past
Fairlot."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduling.backends.base import Secrets
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.orders import Orders, Outcome
from tests.attack.attacks import Attack, all_attacks
from tests.cluster.api import JOBS, PODS, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.emptying import remove
from tests.cluster.stage import (
    ACCOUNTS,
    BARE,
    BINDINGS,
    CLAIMS,
    JOB,
    MAPS,
    NETWORK_POLICIES,
    OTHER,
    OWNER,
    QUOTAS,
    SECRETS,
    SERVICES,
    Stage,
    Try,
    changed,
    passes,
    refusal_of,
    stage,
)
from tests.cluster.tenancy import answer
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, fairlot: Path) -> Iterator[Stage]:
    with stage(plane) as made:
        yield made


# --- what it cannot do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [one for one in all_attacks() if one.needs == "cluster"], ids=str)
def test_holds(attack: Attack, cluster: Stage) -> None:
    target: Any = SimpleNamespace(cluster=cluster)
    attack.run(target)


# --- what it can still do ----------------------------------------------------------------------------------------
# Each is named by the beginning of its line in docs/kubernetes.md.

MALLORYS = "example/mallory"


def sees(cluster: Stage) -> None:
    reads(
        cluster,
        "/api/v1/nodes",
        "/api/v1/pods",
        f"/api/v1/namespaces/{cluster.elsewhere}/pods",
        "/apis/batch/v1/jobs",
        "/api/v1/events",
        "/api/v1/namespaces",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        f"{BINDINGS.format(cluster.home)}/bob-may-all",
    )


def reads(cluster: Stage, *paths: str) -> None:
    passes(cluster.thief, {path: Try("GET", path) for path in paths})


def reads_in_tenants(cluster: Stage) -> None:
    reads(
        cluster,
        f"{MAPS.format(cluster.home)}/his",
        CLAIMS.format(cluster.home),
        f"{PODS.format(cluster.home)}/his",
        f"{PODS.format(cluster.home)}/his/log",
        f"{JOBS.format(cluster.home)}/his",
        f"{SERVICES.format(cluster.home)}/his",
    )


def runs_programs(cluster: Stage) -> None:
    claim = {"name": "shared-memory", "persistentVolumeClaim": {"claimName": "of-the-tenant"}}
    for path, made, at in (
        (JOBS, cluster.job(), "spec/template/spec"),
        (PODS, cluster.bare(), "spec"),
    ):
        greedy = changed(made, f"{at}/containers/0/resources", {"limits": {"nvidia.com/gpu": "8"}})
        greedy = changed(greedy, f"{at}/containers/0/image", MALLORYS)
        passes(
            cluster.thief,
            {"it": Try("POST", path.format(cluster.home), changed(greedy, f"{at}/volumes/0", claim))},
        )


def rules_fairlots_jobs(cluster: Stage) -> None:
    job = f"{JOBS.format(cluster.home)}/{objects.job_name(JOB)}"
    start = [{"op": "replace", "path": "/spec/suspend", "value": False}]
    passes(
        cluster.thief,
        {
            "starts a Job": Try("PATCH", job, start),
            "deletes a Job": Try("DELETE", job, {"propagationPolicy": "Background"}),
            "deletes a pod": Try("DELETE", f"{PODS.format(cluster.home)}/{objects.pod_name(BARE)}"),
            "deletes its hosts": Try("DELETE", f"{MAPS.format(cluster.home)}/{objects.job_name(JOB)}"),
            "deletes its name": Try("DELETE", f"{SERVICES.format(cluster.home)}/{objects.job_name(JOB)}"),
        },
    )


def writes_jobs_secrets(cluster: Stage) -> None:
    there = cluster.admin.get(f"{JOBS.format(cluster.home)}/{objects.job_name(JOB)}")
    answer = cluster.thief.replace(
        f"{SECRETS.format(cluster.home)}/{objects.job_name(JOB)}-variables?dryRun=All",
        secret_of_job(there, f"{objects.job_name(JOB)}-variables"),
    )
    assert "HF_TOKEN" not in answer["data"], "what was there before is told to nobody"


def secret_of_job(job: Object, name: str) -> Object:
    about = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    metadata = {
        "name": name,
        "labels": about["labels"],
        "annotations": {objects.EPOCH: "9"},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"A": "b"}}


def lies_in_wait(cluster: Stage) -> None:
    """Shows a known weakness: a thief creates a Job with Fairlot's labels before Fairlot does.

    Asserts that Fairlot then starts this Job with the thief's image and with the real job's secrets.
    """
    given = Secrets({"HF_TOKEN": "hf_ofALaterJob"})
    made = changed(
        cluster.job(OTHER, given=given, workers=1), "spec/template/spec/containers/0/image", MALLORYS
    )
    cluster.thief.create(JOBS.format(cluster.home), made)
    usual = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1, secrets=given)
    attempt = objects.Attempt(1, "lease", "A100", ["no-such-node"])
    assert Orders(cluster.own, cluster.home, OWNER).start(OTHER, usual, attempt) is Outcome.DONE
    [secret] = cluster.admin.items(SECRETS.format(cluster.home), labelSelector=f"{objects.JOB}={OTHER}")
    there = cluster.admin.get(f"{JOBS.format(cluster.home)}/{objects.job_name(OTHER)}")
    [main] = there["spec"]["template"]["spec"]["containers"]
    assert not there["spec"]["suspend"]
    assert main["image"] == MALLORYS
    assert secret["metadata"]["name"] in str(main["env"])


def moves_walls(cluster: Stage) -> None:
    policies, quotas = NETWORK_POLICIES.format(cluster.home), QUOTAS.format(cluster.home)
    out = [{"op": "add", "path": "/spec/egress/-", "value": {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}}]
    come_in = {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": "main"}]}
    passes(
        cluster.thief,
        {
            "out to every address": Try("PATCH", f"{policies}/fairlot", out),
            "in to sessions": Try("PATCH", f"{policies}/fairlot-sessions", {"spec": {"ingress": [come_in]}}),
            "a larger quota": Try("PATCH", f"{quotas}/fairlot", {"spec": {"hard": {"pods": "9999"}}}),
        },
    )


def makes_namespaces(cluster: Stage) -> None:
    name = f"fairlot-{secrets.randbelow(10**9)}"
    labels = {
        "fairlot.io/tenant": name.removeprefix("fairlot-"),
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    cluster.thief.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairlot-tenant"}
        subject = {"kind": "ServiceAccount", "name": "fairlot", "namespace": "fairlot"}
        cluster.thief.create(
            BINDINGS.format(name), {"metadata": {"name": "fairlot"}, "roleRef": role, "subjects": [subject]}
        )
        account = {"metadata": {"name": "fairlot-job"}, "automountServiceAccountToken": False}
        wait_for(
            lambda: not answer(lambda: cluster.thief.create(ACCOUNTS.format(name), account)),
            what="its rights",
        )
        passes(
            cluster.thief, {"a pod without network policies": Try("POST", PODS.format(name), cluster.bare())}
        )
        refusal = refusal_of(cluster.thief, Try("DELETE", f"/api/v1/namespaces/{name}"))
        assert refusal is not None
        assert refusal.code == 403
    finally:
        remove(cluster.admin, name)


def answers_for_services(cluster: Stage) -> None:
    service = {
        "metadata": {"name": "wiki", "labels": {"fairlot.io/service": "1"}},
        "spec": {"ports": [{"port": 80}], "selector": {"fairlot.io/service": "1"}},
    }
    pod = changed(
        cluster.bare(), "metadata/labels", cluster.bare()["metadata"]["labels"] | {"fairlot.io/service": "1"}
    )
    passes(
        cluster.thief,
        {
            "a name of its choice": Try("POST", SERVICES.format(cluster.home), service),
            "a replica of a service": Try("POST", PODS.format(cluster.home), pod),
        },
    )


LEFT = {
    "It sees": sees,
    "It reads": reads_in_tenants,
    "It runs programs": runs_programs,
    "It controls Fairlot's jobs": rules_fairlots_jobs,
    "It overwrites secrets of jobs": writes_jobs_secrets,
    "It intercepts future secrets": lies_in_wait,
    "It changes network rules": moves_walls,
    "It creates namespaces": makes_namespaces,
    "It answers for services": answers_for_services,
}
DOC = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"


@pytest.mark.parametrize("what", LEFT)
def test_is_left(cluster: Stage, what: str) -> None:
    LEFT[what](cluster)


def test_the_documentation_lists_exactly_what_remains_possible() -> None:
    _, _, section = DOC.read_text().partition("\n## What a stolen token is good for\n")
    section, _, _ = section.partition("\n## ")
    assert re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE) == list(LEFT)
