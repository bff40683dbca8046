"""Creates nodes with GPUs that kwok simulates, and reads the simulation's rules (stages.yaml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from tests.cluster.api import NODES, Api, Object
from tests.cluster.binaries import KUBERNETES
from tests.waiting import wait_for

# kwok simulates only nodes with this annotation. After its removal kwok still simulates the node until kwok ends.
PLAYED = {"kwok.x-k8s.io/node": "fake"}
A100 = "NVIDIA-A100-SXM4-80GB"
V100 = "Tesla-V100-SXM2-32GB"


def stages() -> str:
    """Returns the content of stages.yaml in the form that kwok reads, with one document per stage."""
    listed = yaml.safe_load((Path(__file__).parent / "stages.yaml").read_text())
    return yaml.safe_dump_all(listed)


def gpu_node(
    name: str,
    *,
    gpus: int = 8,
    product: str = A100,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
) -> Object:
    """Returns a node with the labels and resources that NVIDIA's device plugin and feature discovery set.

    `resources` adds extended resources, such as MIG slices.
    """
    capacity = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "256"}
    capacity |= {"nvidia.com/gpu": str(gpus)} | dict(resources or {})
    found = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(gpus),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": found | dict(labels or {}), "annotations": PLAYED},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "kwok",
                "kernelVersion": "kwok",
                "kubeProxyVersion": "",
                "kubeletVersion": KUBERNETES.version,
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "kwok",
                "systemUUID": "",
            },
        },
    }


def add_nodes(api: Api, nodes: Iterable[Object]) -> list[str]:
    """Creates the nodes, waits until they accept pods, and returns their names.

    A node accepts pods if it is Ready and no longer has the taint of new nodes.
    """
    names = [node["metadata"]["name"] for node in api.create_all(NODES, nodes)]
    wait_for(lambda: set(names) <= usable(api), what=f"{len(names)} nodes are Ready", every=0.2)
    return names


def usable(api: Api) -> set[str]:
    """Returns the names of nodes that are Ready and have no taint."""
    return {
        node["metadata"]["name"]
        for node in api.items(NODES)
        if condition(node, "Ready") == "True" and not node["spec"].get("taints")
    }


def condition(thing: Object, name: str) -> str | None:
    """Returns the status of the object's condition `name`: "True", "False" or "Unknown"; None if the condition is
    missing."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((found["status"] for found in conditions if found["type"] == name), None)
