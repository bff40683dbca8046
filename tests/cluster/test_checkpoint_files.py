"""Where Fairlot itself may not read claims, the commands on the page create a pod that the cluster accepts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from scheduling.backends.base import FilesElsewhere
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.backends.kubernetes.objects import job_name
from tests.cluster.api import PODS, Api

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def backend(kubeconfig: Path, namespace: str, logs: Path, claim: str) -> KubernetesBackend:
    return KubernetesBackend(
        api=lambda: OwnApi(yaml.safe_load(kubeconfig.read_text())),
        owner=namespace,
        namespace_of=lambda job_id: namespace,
        logs=logs,
        log_limit_bytes=1000,
        log_streams=1,
        checkpoint_claim=claim,
    )


def test_the_pod_of_the_commands_is_accepted_in_the_teams_namespace(
    fairlot: Path, tenant: str, bob: Api, tmp_path: Path
) -> None:
    with_claim = backend(fairlot, tenant, tmp_path, "checkpoints")
    with pytest.raises(FilesElsewhere) as answer:
        with_claim.list_files(job_id=17, path="", limit=10)
    assert with_claim.measure_files(job_id=17) is None
    assert f"the PersistentVolumeClaim checkpoints of the namespace {tenant}" in str(answer.value)
    run, *_, copy, _ = (shlex.split(line) for line in answer.value.how.splitlines())
    assert copy[:4] == ["kubectl", "--namespace", tenant, "cp"]
    name, overrides = run[run.index("run") + 1], json.loads(run[run.index("--overrides") + 1])
    spec = overrides["spec"] | {"restartPolicy": "Never"}
    made = bob.create(PODS.format(tenant), {"metadata": {"name": name}, "spec": spec})
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"]) == (job_name(17), True)
    assert made["spec"]["automountServiceAccountToken"] is False


def test_without_a_claim_nothing_is_promised(fairlot: Path, tenant: str, tmp_path: Path) -> None:
    with pytest.raises(FilesElsewhere) as answer:
        backend(fairlot, tenant, tmp_path, "").open_file(job_id=17, path="work/x")
    assert answer.value.how == ""
