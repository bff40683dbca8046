"""Tests of real containers on a real node: GPUs by NVML, logs, SIGTERM, exit codes, memory, network, and complete
clean-up."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scheduling.backends.kubernetes.discovery import supplies
from tests.cluster import machine
from tests.cluster.api import JOBS, NODES, PODS, Api, Object, Refused
from tests.cluster.binaries import KUBERNETES
from tests.cluster.containers import Containers
from tests.cluster.controlplane import ControlPlane
from tests.cluster.deployed import FAIRLOT
from tests.cluster.images import PYTHON, SHELL
from tests.cluster.jobs import Work
from tests.cluster.nodes import A100
from tests.cluster.realnode import GPU, GROUP, RealNode, claim, sweep_cgroups
from tests.cluster.tenancy import JOB, fairlots_job
from tests.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["python3", "/opt/examples/digits/train.py"]
# A program that prints what it sees of GPUs through the real NVML bindings, and then holds the GPUs.
ASK = """
import json, os, pynvml, time
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({
    "uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
    "products": [pynvml.nvmlDeviceGetName(handle) for handle in handles],
    "memory": [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles],
    "visible": os.environ["CUDA_VISIBLE_DEVICES"].split(","),
}))
time.sleep(86400)
"""
NO_DRIVER = """
import pynvml
try:
    pynvml.nvmlInit()
except pynvml.NVMLError_LibraryNotFound:
    print("no driver")
"""


@pytest.fixture
def containers(admin: Api, namespace: str, real_node: RealNode) -> Containers:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    return Containers(admin, namespace, real_node)


def healthy(admin: Api, node: RealNode) -> list[tuple[str, int, int]]:
    return [(supply.product, supply.installed, supply.healthy) for supply in supplies(admin.get(node.path))]


def test_the_node_is_ready_and_has_its_gpus(admin: Api, real_node: RealNode) -> None:
    info = admin.get(real_node.path)["status"]["nodeInfo"]
    assert info["kubeletVersion"] == KUBERNETES.version
    assert info["containerRuntimeVersion"].startswith("containerd://")
    [supply] = supplies(admin.get(real_node.path))
    assert (supply.resource, supply.product, supply.why_not) == (GPU, A100, "")
    assert (supply.installed, supply.healthy) == (4, 4)


def test_each_pod_sees_the_gpus_that_it_was_given_and_no_others(containers: Containers) -> None:
    for name in ("one", "other"):
        containers.run(name, ["python3", "-c", ASK], gpus=2)
    one, other = (json.loads(containers.first_line(name)) for name in ("one", "other"))
    gpus = containers.node.gpus
    assert sorted(one["uuids"] + other["uuids"]) == sorted(gpus.uuids)
    for seen in (one, other):
        assert sorted(seen["visible"]) == sorted(seen["uuids"])
        # The container sees its GPUs in the order of the node.
        assert seen["uuids"] == [uuid for uuid in gpus.uuids if uuid in seen["uuids"]]
        assert seen["products"] == [A100] * 2
        assert seen["memory"] == [80 << 30] * 2
    containers.run("third", ["true"], gpus=1)

    def why_not() -> list[str]:
        conditions = containers.read("third")["status"].get("conditions", [])
        return [condition["message"] for condition in conditions if condition["type"] == "PodScheduled"]

    [message] = wait_for(why_not, what="the scheduler says why")
    assert f"Insufficient {GPU}" in message


def test_a_pod_that_asked_for_no_gpu_finds_no_driver(containers: Containers) -> None:
    containers.run("none", ["python3", "-c", NO_DRIVER])
    assert containers.first_line("none") == "no driver"
    assert containers.end_of("none")["exitCode"] == 0


def test_a_failed_gpu_is_not_allocated_until_it_is_healthy_again(admin: Api, real_node: RealNode) -> None:
    gpus = real_node.gpus
    gpus.fail(gpus.uuids[1])
    wait_for(lambda: healthy(admin, real_node) == [(A100, 4, 3)], what=lambda: str(healthy(admin, real_node)))
    gpus.heal(gpus.uuids[1])
    wait_for(lambda: healthy(admin, real_node) == [(A100, 4, 4)], what=lambda: str(healthy(admin, real_node)))


def test_a_container_continues_while_its_kubelet_restarts(containers: Containers, admin: Api) -> None:
    node = containers.node
    containers.run("steady", ["sleep", "86400"], image=SHELL, gpus=1)
    before = containers.wait_for_phase("steady", "Running")["status"]["containerStatuses"][0]
    offers = node.device_plugin.log.read_text().count("offered")
    node.kubelet.restart()
    wait_for(
        lambda: node.device_plugin.log.read_text().count("offered") > offers,
        what="the device plugin has met the new kubelet",
    )
    wait_for(lambda: healthy(admin, node) == [(A100, 4, 4)], what=lambda: str(healthy(admin, node)))
    # A new pod can still get a GPU.
    containers.run("next", ["true"], image=SHELL, gpus=1)
    assert containers.end_of("next")["exitCode"] == 0
    after = containers.read("steady")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert "running" in after["state"]


def test_sigterm_reaches_the_program_and_its_last_output_is_in_the_log(containers: Containers) -> None:
    containers.run("training", [*TRAIN, "--steps", "1000000", "--seconds-per-step", "0.01"], gpus=1)
    containers.wait_for_phase("training", "Running")
    query = {"follow": "true"}
    said = []
    with containers.api.http.stream(
        "GET", f"{containers.pods}/training/log", params=query, timeout=PATIENCE
    ) as log:
        for line in log.iter_lines():
            said.append(line)
            if len(said) == 3:
                containers.api.delete(f"{containers.pods}/training")
    if said[-1].startswith("rpc error: "):  # the kubelet's own message if the container is already gone
        said.pop()
    steps = [line.split()[1] for line in said if line.startswith("step ")]
    assert steps == [str(step + 1) for step in range(len(steps))]
    assert len(steps) >= 3
    assert said[-1] == f"stopping as ordered; saved step {steps[-1]}"


def test_a_checkpoint_on_a_claim_outlives_its_pod(
    containers: Containers, plane: ControlPlane, namespace: str
) -> None:
    kept = claim(plane, namespace, "checkpoints")
    container = {
        "volumeMounts": [{"name": "kept", "mountPath": "/checkpoint"}],
        "env": [{"name": "FAIRLOT_CHECKPOINT_DIR", "value": "/checkpoint"}],
    }
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": kept}}]
    quick = [*TRAIN, "--seconds-per-step", "0", "--target-accuracy", "0"]
    for name, steps in (("first", "50"), ("second", "60")):
        containers.run(name, [*quick, "--steps", steps], container=container, volumes=volumes)
        assert containers.end_of(name)["exitCode"] == 0, containers.log(name)
    assert containers.log("first").startswith("step 1 loss")
    resumed = containers.log("second").splitlines()
    assert resumed[0] == "resuming from the checkpoint of step 50"
    assert resumed[1].startswith("step 51 loss")


def test_a_pod_reports_how_its_program_ended(containers: Containers) -> None:
    containers.run("broken", ["sh", "-c", "echo this is the end; exit 7"], image=SHELL)
    containers.run("greedy", ["python3", "-c", "bytearray(1 << 30)"], memory="64Mi")
    broken, greedy = containers.end_of("broken"), containers.end_of("greedy")
    assert (broken["exitCode"], broken["reason"]) == (7, "Error")
    assert containers.log("broken") == "this is the end\n"
    assert (greedy["exitCode"], greedy["reason"]) == (137, "OOMKilled")


def test_pods_reach_each_other_and_the_api_server_reaches_them(containers: Containers) -> None:
    serve = ["python3", "-m", "http.server", "--directory", "/opt/examples/digits", "8000"]
    ready = {"readinessProbe": {"httpGet": {"path": "/README.md", "port": 8000}, "periodSeconds": 1}}
    containers.run("server", serve, container=ready)

    def is_ready() -> bool:
        statuses = containers.read("server")["status"].get("containerStatuses", [])
        return any(status["ready"] for status in statuses)

    wait_for(is_ready, what=lambda: f"the server is ready: {containers.read('server')['status']}", every=0.1)
    page = (ROOT / "examples" / "digits" / "README.md").read_text()
    assert containers.api.http.get(f"{containers.pods}/server:8000/proxy/README.md").text == page
    address = containers.read("server")["status"]["podIP"]
    containers.run("client", ["wget", "-q", "-O", "-", f"http://{address}:8000/README.md"], image=SHELL)
    assert containers.end_of("client")["exitCode"] == 0, containers.log("client")
    assert containers.log("client") == page


def test_the_workers_of_a_gang_find_each_other_by_name_and_train(
    plane: ControlPlane, tenant: str, real_node: RealNode
) -> None:
    """Proves that two workers find each other through a headless Service, with the rights and policies of
    deploy/kubernetes."""
    api = plane.api(FAIRLOT)
    service = {"clusterIP": "None", "selector": {JOB: "1"}, "publishNotReadyAddresses": True}
    path = f"/api/v1/namespaces/{tenant}/services"
    api.create(path, {"metadata": {"name": "fairlot-digits", "labels": {JOB: "1"}}, "spec": service})
    created = api.create(JOBS.format(tenant), gang(real_node))
    work = Work(api, tenant)
    job = f"{work.jobs}/fairlot-digits"
    api.patch(job, [{"op": "replace", "path": "/spec/suspend", "value": False}])
    ours = partial(api.items, "/api/v1/pods", labelSelector=f"controller-uid={created['metadata']['uid']}")
    wait_for(lambda: len(ours()) == 2, what="two pods behind the gate")
    for pod in ours():
        assert pod["status"]["phase"] == "Pending"
        api.patch(work.pod(pod), [{"op": "remove", "path": "/spec/schedulingGates"}])

    def ended() -> bool:
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in ours())

    wait_for(ended, what=lambda: f"both end: {[pod['status'] for pod in ours()]}", every=0.2)
    logs = [api.http.get(f"{work.pod(pod)}/log").text for pod in ours()]
    assert {pod["status"]["phase"] for pod in ours()} == {"Succeeded"}, logs
    assert sum("step 20 loss" in log for log in logs) == 1
    assert sum("worker 1 did its part of step 20" in log for log in logs) == 1


def gang(node: RealNode) -> Object:
    """Returns the manifest of a Job of two workers that train together with one GPU each."""
    made = fairlots_job("fairlot-digits", pods=2)
    spec = made["spec"]["template"]["spec"]
    spec |= {"subdomain": "fairlot-digits", "nodeSelector": {"kubernetes.io/hostname": node.name}}
    spec["securityContext"] |= {"runAsUser": 1000}
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    # DNS resolves a pod's name only some time after the pod has an address.
    look = "python3 -c 'import os, socket; socket.gethostbyname(os.environ[\"MASTER_ADDR\"])'"
    program = f"until {look}; do :; done; exec python3 $FAIRLOT_EXAMPLES/digits/train.py"
    spec["containers"][0] |= {
        "image": PYTHON,
        "command": ["sh", "-c", f"{program} --steps 20 --seconds-per-step 0 --target-accuracy 0"],
        "env": [
            {"name": "FAIRLOT_RANK", "valueFrom": rank},
            {"name": "FAIRLOT_WORLD_SIZE", "value": "2"},
            {"name": "MASTER_ADDR", "value": "fairlot-digits-0.fairlot-digits"},
        ],
    }
    return made


def test_pod_security_refuses_a_container_that_runs_as_root(containers: Containers) -> None:
    with pytest.raises(Refused, match="violates PodSecurity") as refusal:
        containers.run("root", ["true"], securityContext={"runAsUser": 0})
    assert refusal.value.code == 403


def test_nothing_is_left_when_the_process_that_started_a_node_is_killed(
    real_node: RealNode, tmp_path: Path
) -> None:
    """Proves that nothing remains of a node after the process that started it was killed.

    Another process starts this second node, which runs beside the node of the other tests.
    """
    folder = tmp_path / "cluster"
    folder.mkdir()
    argv = [sys.executable, "-m", "tests.cluster", str(folder), "0", "1"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = keep_busy(Path(process.stdout.readline().strip()), real_node.name)
            groups = [tree for root in machine.cgroups() for tree in root.glob(f"{GROUP}{process.pid}-*")]
            assert any(pids(tree) for tree in groups)
            assert f" {address}/" in addresses()
        finally:
            process.kill()
    wait_for(lambda: not any(pids(tree) for tree in groups), what="the containers are gone")
    wait_for(lambda: not started_in(tmp_path), what=lambda: f"{started_in(tmp_path)} are gone")
    wait_for(lambda: f" {address}/" not in addresses(), what=lambda: f"{address} is gone: {addresses()}")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    sweep_cgroups()
    assert not any(tree.exists() for tree in groups)


def keep_busy(kubeconfig: Path, name: str) -> str:
    """Runs a container on the real node of the test cluster that `kubeconfig` names. Returns the node's address."""
    api = Api(kubeconfig)
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    wait_for(lambda: api.items(accounts), what="an account")
    pod = {"name": "main", "image": SHELL, "command": ["sleep", "86400"]}
    spec = {"containers": [pod], "automountServiceAccountToken": False}
    path = f"{PODS.format('default')}/busy"
    api.create(PODS.format("default"), {"metadata": {"name": "busy"}, "spec": spec})
    wait_for(lambda: api.get(path)["status"]["phase"] == "Running", what=lambda: str(api.get(path)["status"]))
    known = api.get(f"{NODES}/{name}")["status"]["addresses"]
    api.close()
    [address] = [entry["address"] for entry in known if entry["type"] == "InternalIP"]
    return str(address)


def addresses() -> str:
    return subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True).stdout


def pids(tree: Path) -> list[str]:
    """Returns the pids of all processes in a cgroup and in the cgroups below it."""
    return [pid for procs in tree.rglob("cgroup.procs") for pid in procs.read_text().split()]


def started_in(folder: Path) -> list[str]:
    """Returns the command lines of processes that have a path in the folder among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # the process has just ended
        if str(folder) in command:
            found.append(command)
    return found
