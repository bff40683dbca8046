"""A real node: kubelet, containerd and runc run real containers. Its GPUs come from nvml.c and a device plugin.

    with RealNode(plane).started() as node:
        ...  # pods with the images images.SHELL and images.PYTHON run there

The containers live in separate PID, mount and network namespaces. All of these end with the process that started the
node, even if it is killed. Only empty cgroups remain, which the next node removes.

A DNS server at an additional address of this machine answers with the addresses of headless Services. Services with a
cluster IP are not supported.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from embedded.processes import run, spawn
from tests.cluster import images, machine
from tests.cluster.api import NODES
from tests.cluster.component import Component, answers, free_port
from tests.cluster.controlplane import ControlPlane
from tests.cluster.gpus import Gpus, library
from tests.cluster.nodes import A100, usable
from tests.waiting import wait_for

HERE = Path(__file__).resolve().parent
GPU = "nvidia.com/gpu"
MEMORY = {A100: 80 << 30}
GROUP = "fairlot-node-"  # prefix of cgroup names, followed by process, control plane and node
# Visible only in the node's own mounts. The path is short, because the kernel allows no long socket paths.
SOCKET = "/run/containerd/fairlot-node.sock"
# Kernel settings that the kubelet expects. Only the kubelet sees these values, and the machine keeps its own.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


class RealNode:
    """A real node of the control plane. The control plane must already have credentials for a user with the node's
    name."""

    def __init__(
        self, plane: ControlPlane, name: str = "real-0", *, gpus: int = 4, product: str = A100
    ) -> None:
        self.plane, self.name = plane, name
        self.folder = plane.folder / name
        self.path = f"{NODES}/{name}"
        for below in ("kubelet/device-plugins", "log", "containerd", "cni", "gpus"):
            (self.folder / below).mkdir(parents=True)
        self.gpus = Gpus(self.folder / "gpus", gpus, product, MEMORY.get(product, 32 << 30))
        self.group = f"{GROUP}{os.getpid()}-{plane.folder.name}-{name}"
        self.network = free_network()
        self.container_runtime: subprocess.Popen[bytes] | None = None
        self.kubelet = self._kubelet()
        offered: dict[str, Any] = {"gpus": self.folder / "gpus", "library": library()}
        # The node's capacity shows whether the plugin serves.
        self.device_plugin = Component("gpu-device-plugin", self.folder, offered, lambda: True)

        asked = {"kubeconfig": self.kubelet.flags["kubeconfig"], "listen": f"{self.network}.1:53"}
        self.dns = Component(
            "cluster-dns", self.folder, asked, lambda: "answering" in self.dns.log.read_text()
        )

    @contextmanager
    def started(self) -> Iterator[RealNode]:
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        stored = [image.stored() for image in (images.shell(), images.python())]
        self.plane.admin.apply(HERE / "node-rights.yaml")
        sweep_cgroups()
        for hierarchy in machine.cgroups():
            (hierarchy / self.group).mkdir()
        self._start_container_runtime()
        for image in stored:
            run([*self._ctr(), "--namespace", "k8s.io", "images", "import", image])
        self.dns.start()
        for component in (self.kubelet, self.device_plugin):
            component.wrapper = self._inside()
            component.start()
        wait_for(self._is_ready, what=lambda: f"{self.name} is ready:\n{self.last_lines()}")

    def stop(self) -> None:
        """Kills the node's processes, as a power failure would, and waits until the node's cgroups are removed."""
        for component in (self.device_plugin, self.kubelet, self.dns):
            if component.running:
                component.kill()
        if self.container_runtime:
            self.container_runtime.kill()
            self.container_runtime.wait()
        for hierarchy in machine.cgroups():
            wait_for(partial(is_removed, hierarchy / self.group), what=f"{self.group} is empty")

    def last_lines(self) -> str:
        logs = (self.folder / "containerd.log", self.kubelet.log, self.device_plugin.log)
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())

    def _is_ready(self) -> bool:
        for component in (self.kubelet, self.device_plugin):
            if not component.running:
                raise AssertionError(f"{component.name} ended at its start:\n{component.last_lines()}")
        if self.name not in usable(self.plane.admin):
            return False
        status = self.plane.admin.get(self.path)["status"]
        return bool(status["allocatable"].get(GPU) == str(len(self.gpus.uuids)))

    def _start_container_runtime(self) -> None:
        """Starts containerd in new namespaces, and connects its network bridge to this machine by a veth pair."""
        for place in ("/var/lib/kubelet", "/run/containerd", "/var/lib/cni"):
            Path(place).mkdir(parents=True, exist_ok=True)  # mount points for the namespaces
        for name, value in SYSCTLS.items():
            path = self.folder / "sysctl" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        (self.folder / "cni" / "10-bridge.conflist").write_text(self._cni())
        (self.folder / "containerd.toml").write_text(self._containerd())
        unshare = [program("unshare"), "--pid", "--fork", "--kill-child=KILL", "--mount", "--net", "--"]
        script: list[str | Path] = ["sh", HERE / "realnode.sh", self.folder, f"{self.network}.2/24"]
        log = self.folder / "containerd.log"
        self.container_runtime = spawn([*unshare, *script], log=log, cwd=self.folder)
        wait_for(self._serves, what=lambda: f"containerd serves:\n{self.last_lines()}")
        self._plug_in(self.container_runtime.pid)

    def _serves(self) -> bool:
        assert self.container_runtime
        if self.container_runtime.poll() is not None:
            raise AssertionError(f"containerd ended at its start:\n{self.last_lines()}")
        return subprocess.run([*self._ctr(), "version"], capture_output=True, check=False).returncode == 0

    def _ctr(self) -> tuple[str, ...]:
        return *self._inside(), program("ctr"), "--address", SOCKET

    def _inside(self) -> tuple[str, ...]:
        """Returns the command prefix (nsenter) that makes a program see the node's mounts."""
        assert self.container_runtime
        return program("nsenter"), f"--mount=/proc/{self.container_runtime.pid}/ns/mnt", "--"

    def _plug_in(self, inside: int) -> None:
        """Connects the network namespace of the process `inside` to this machine by a veth pair.

        This machine's end has the node's address, so that API server and kubelet can reach the pods.
        """
        ip, here = program("ip"), f"fairlot-{self.network.rpartition('.')[2]}"
        run([ip, "link", "add", here, "type", "veth", "peer", "name", "uplink", "netns", str(inside)])
        run([ip, "address", "add", f"{self.network}.1/24", "dev", here])
        run([ip, "link", "set", here, "up"])
        net = f"--net=/proc/{inside}/ns/net"
        run([program("nsenter"), net, ip, "link", "set", "uplink", "master", "cni0", "up"])

    def _cni(self) -> str:
        addresses = {"subnet": f"{self.network}.0/24", "rangeStart": f"{self.network}.10"}
        addresses["gateway"] = f"{self.network}.1"
        ipam = {"type": "host-local", "ranges": [[addresses]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
        return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})

    def _containerd(self) -> str:
        own = self.folder / "containerd"
        return f"""
version = 2
root = "{own}/root"
state = "{own}/state"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{own}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.SHELL}"
  # Some machines permit nobody, not even root, to have the kernel spare a process.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "{self.network}.2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{machine.CNI}"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{program("runc")}"
"""

    def _kubelet(self) -> Component:
        health = free_port()
        none = dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
        )
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "address": f"{self.network}.1",
            "port": free_port(),
            "healthzPort": health,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.plane.credentials.kubelet_client)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,  # the kubelet would change the machine's own iptables chains
            "nodeStatusUpdateFrequency": "1s",
            # The tests must not depend on how full the machine's disk and memory are.
            "evictionHard": none,
            "imageGCHighThresholdPercent": 100,
            "clusterDNS": [f"{self.network}.1"],
            "clusterDomain": "cluster.local",
            "volumePluginDir": "/var/lib/kubelet/plugins",
        }
        path = self.folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        flags: dict[str, Any] = {
            "config": path,
            "kubeconfig": self.plane.kubeconfig(f"system:node:{self.name}"),
            "hostname-override": self.name,
            "node-ip": f"{self.network}.1",
            "node-labels": ",".join(f"{name}={value}" for name, value in self._labels().items()),
        }
        return Component("kubelet", self.folder, flags, answers(f"http://127.0.0.1:{health}/healthz", "ok"))

    def _labels(self) -> dict[str, str]:
        """Returns the labels that NVIDIA's feature discovery would set."""
        return {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.gpus.product,
            "nvidia.com/gpu.count": str(len(self.gpus.uuids)),
            "nvidia.com/gpu.memory": str(self.gpus.memory_bytes >> 20),
        }


def claim(plane: ControlPlane, namespace: str, name: str) -> str:
    """Creates a PersistentVolumeClaim for a folder of this machine that all real nodes share, and returns the claim's
    name."""
    folder = plane.folder / "volumes" / namespace / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"{namespace}-{name}"
    room, reference = {"storage": "1Gi"}, {"namespace": namespace, "name": name}
    spec = {"capacity": room, "hostPath": {"path": str(folder)}, "claimRef": reference}
    plane.admin.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": shared | spec})
    asked = {"volumeName": volume, "resources": {"requests": room}}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    plane.admin.create(claims, {"metadata": {"name": name}, "spec": shared | asked})
    return name


def program(name: str) -> str:
    path = machine.found(name)
    assert path, f"{name} is missing"
    return path


def free_network() -> str:
    """Returns the first three numbers of an IPv4 network with 254 addresses that this machine does not use."""
    taken = subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True).stdout
    while True:
        network = f"10.213.{random.randrange(256)}"
        if f" {network}." not in taken:
            return network


def sweep_cgroups() -> None:
    """Removes the cgroups of earlier nodes whose starting process no longer exists."""
    for hierarchy in machine.cgroups():
        for tree in hierarchy.glob(f"{GROUP}*"):
            if not Path("/proc", tree.name.removeprefix(GROUP).partition("-")[0]).exists():
                is_removed(tree)


def is_removed(tree: Path) -> bool:
    """Tries to remove a cgroup and all cgroups below it. Returns False if a killed process has not ended in one of them
    yet."""
    try:
        for folder, below, _ in os.walk(tree, topdown=False):
            for name in below:
                Path(folder, name).rmdir()
        tree.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True
