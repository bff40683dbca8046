"""Where Fairlot itself may not read claims, the commands on the page create a pod that the cluster accepts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from scheduling.backends.base import FilesElsewhere
from scheduling.backends.kubernetes.objects import job_name
from tests.cluster.api import PODS, Api
from tests.cluster.backend_rig import rigs

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_pod_of_the_commands_is_accepted_in_the_teams_namespace(
    fairlot: Path, admin: Api, tenant: str, bob: Api, tmp_path: Path
) -> None:
    with rigs(admin, fairlot, tenant, tmp_path, checkpoint_claim="checkpoints") as rigging:
        backend = rigging().backend
        with pytest.raises(FilesElsewhere) as answer:
            backend.list_files(job_id=17, path="", limit=10)
        assert backend.measure_files(job_id=17) is None
    assert f"the PersistentVolumeClaim checkpoints of the namespace {tenant}" in str(answer.value)
    run, *_, copy, _ = (shlex.split(line) for line in answer.value.how.splitlines())
    assert copy[:4] == ["kubectl", "--namespace", tenant, "cp"]
    name, overrides = run[run.index("run") + 1], json.loads(run[run.index("--overrides") + 1])
    made = bob.create(
        PODS.format(tenant),
        {"metadata": {"name": name}, "spec": overrides["spec"] | {"restartPolicy": "Never"}},
    )
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"]) == (job_name(17), True)
    assert made["spec"]["automountServiceAccountToken"] is False


def test_without_a_claim_nothing_is_promised(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> None:
    with rigs(admin, fairlot, tenant, tmp_path) as rigging, pytest.raises(FilesElsewhere) as answer:
        rigging().backend.open_file(job_id=17, path="work/x")
    assert answer.value.how == ""
