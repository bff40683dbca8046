"""The portal reads checkpoints through reader pods that the cluster accepts. Where it cannot, the commands on the page
create a pod that the cluster accepts, too."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from scheduling.backends.base import FileKind, FilesElsewhere, FilesNotReady
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.backend import KubernetesBackend
from scheduling.backends.kubernetes.objects import job_name
from scheduling.backends.kubernetes.reader_pods import Readers, User, reader_name
from tests.cluster.api import PODS, Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.tenancy import answer
from tests.scheduling.reader_process import free_port, program
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CLAIM = "checkpoints"


def backend(
    kubeconfig: Path, namespace: str, logs: Path, claim: str, readers: Readers | None = None
) -> KubernetesBackend:
    return KubernetesBackend(
        api=lambda: OwnApi(yaml.safe_load(kubeconfig.read_text())),
        owner=namespace,
        namespace_of=lambda job_id: namespace,
        logs=logs,
        log_limit_bytes=1000,
        log_streams=1,
        checkpoint_claim=claim,
        readers=readers,
    )


@pytest.fixture
def kubelet(plane: ControlPlane) -> Api:
    return plane.api("kwok")


@pytest.fixture
def reading(fairlot: Path, tenant: str, tmp_path: Path) -> KubernetesBackend:
    """Returns the backend with Fairlot's own rights, which has readers."""
    readers = Readers(
        image="python",
        port=free_port(),
        secret_of=lambda name, nonce: f"{name}/{nonce}",
        user_of=lambda job_id: User(1234, 2345),
    )
    return backend(fairlot, tenant, tmp_path, CLAIM, readers)


def test_the_pod_of_the_commands_is_accepted_in_the_teams_namespace(
    fairlot: Path, tenant: str, bob: Api, tmp_path: Path
) -> None:
    with_claim = backend(fairlot, tenant, tmp_path, CLAIM)
    with pytest.raises(FilesElsewhere) as told:
        with_claim.list_files(job_id=17, path="", limit=10)
    assert with_claim.measure_files(job_id=17) is None
    assert f"the PersistentVolumeClaim checkpoints of the namespace {tenant}" in str(told.value)
    run, *_, copy, _ = (shlex.split(line) for line in told.value.how.splitlines())
    assert copy[:4] == ["kubectl", "--namespace", tenant, "cp"]
    name, overrides = run[run.index("run") + 1], json.loads(run[run.index("--overrides") + 1])
    spec = overrides["spec"] | {"restartPolicy": "Never"}
    made = bob.create(PODS.format(tenant), {"metadata": {"name": name}, "spec": spec})
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"]) == (job_name(17), True)
    assert made["spec"]["automountServiceAccountToken"] is False


def test_without_a_claim_nothing_is_promised(fairlot: Path, tenant: str, tmp_path: Path) -> None:
    with pytest.raises(FilesElsewhere) as told:
        backend(fairlot, tenant, tmp_path, "").open_file(job_id=17, path="work/x")
    assert told.value.how == ""


def played(pod: Object, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the variables with which a kubelet would start the pod's container, for a claim whose
    folder of the job is `folder`."""
    (container,) = pod["spec"]["containers"]
    command = [part.replace("$$", "$") for part in container["command"]]
    given = {one["name"]: one["value"] for one in container["env"]}
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == f"{given['FAIRLOT_READER_FOLDER']}/checkpoint"
    return [sys.executable, *command[1:]], given | {"FAIRLOT_READER_FOLDER": str(folder)}


def run_in(kubelet: Api, pod: str, address: str) -> None:
    """Says what a kubelet says of a pod that runs and is ready."""
    now = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
    kubelet.merge(f"{pod}/status", {"status": status})


def test_a_reader_pod_serves_the_checkpoints_and_nothing_else(
    reading: KubernetesBackend, tenant: str, kubelet: Api, bob: Api, tmp_path: Path
) -> None:
    assert not reading.files_are_ready(job_id=17)
    reading.start_reader(job_id=17)
    reading.start_reader(job_id=17)  # a second request at the same time
    path = f"{PODS.format(tenant)}/{reader_name(17)}"
    pod = bob.get(path)
    with pytest.raises(FilesNotReady):
        reading.files_are_ready(job_id=17)
    (container,) = pod["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"]) == (job_name(17), True)
    assert pod["spec"]["volumes"] == [
        {"name": "files", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}
    ]
    assert not pod["spec"]["automountServiceAccountToken"]
    assert objects.NVIDIA not in container["resources"]["limits"]
    assert (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["fsGroup"]) == (
        1234,
        2345,
    )
    secret = f"{reader_name(17)}/{pod['metadata']['annotations']['fairlot.io/nonce']}"
    assert secret not in json.dumps(pod), "people who see pods do not learn it"
    assert hashlib.sha256(secret.encode()).hexdigest() in json.dumps(pod)
    unlabelled = {"metadata": {"labels": {"fairlot.io/session": None}}}
    assert "set only by Fairlot" in answer(lambda: bob.merge(path, unlabelled))

    files = tmp_path / "claim"
    (files / "checkpoint").mkdir(parents=True)
    (files / "checkpoint" / "step-1").write_bytes(b"weights")
    (files / "checkpoint" / "link").symlink_to("/etc/passwd")
    with program(*played(pod, files)):
        run_in(kubelet, path, "127.0.0.1")
        assert reading.files_are_ready(job_id=17)
        assert [one.name for one in reading.list_files(job_id=17, path="", limit=9).entries] == ["checkpoint"]
        link, step = reading.list_files(job_id=17, path="checkpoint", limit=9).entries
        assert (link.kind, step.name, step.size) == (FileKind.LINK, "step-1", 7)
        with closing(reading.open_file(job_id=17, path="checkpoint/step-1", offset=2)) as opened:
            assert opened.read(100) == b"ights"
    # The program has ended, and the API server does not know it yet.
    with pytest.raises(FilesElsewhere) as told:
        reading.list_files(job_id=17, path="", limit=9)
    assert "FAIRLOT_PORTAL_FROM" in str(told.value)
    assert told.value.how


def test_readers_are_removed_when_they_are_over_or_their_job_is_gone(
    reading: KubernetesBackend, tenant: str, admin: Api, kubelet: Api
) -> None:
    for job in (17, 18, 19):
        reading.start_reader(job_id=job)
    there = PODS.format(tenant)
    kubelet.merge(f"{there}/{reader_name(18)}/status", {"status": {"phase": "Succeeded"}})

    def left() -> set[str]:
        pods = [pod for pod in admin.items(there) if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"] for pod in pods}

    for _ in range(2):
        reading.stop_readers(unless=lambda job: job != 19)
        wait_for(lambda: left() == {reader_name(17)}, what=lambda: f"two pods to end: {left()}")
    assert not reading.observe(), "nobody takes a reader for a gang"
