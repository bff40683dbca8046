"""Functions that read the GPUs of a cluster from its nodes and pods.

They return which GPU types exist, why some nodes accept no workers, and how many GPUs other pods use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kubernetes.utils import parse_quantity

from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.objects import JOB, TOLERATED

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"
PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"
# Pods in these phases no longer hold resources.
ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Supply:
    """The GPUs of one type (one resource name) on one node."""

    node: str
    resource: str  # extended resource that a pod requests, such as nvidia.com/gpu
    product: str  # the hardware's name for the GPU type, including the slice for MIG
    part: str  # the slice alone, such as a MIG profile; empty for whole GPUs
    installed: int
    # Allocatable GPUs that the device plugin reports; fewer than installed when some have failed.
    healthy: int
    is_up: bool
    why_not: str  # why the node accepts no new workers, in plain words; empty when the node accepts them
    cpus: float | None = None  # processors that the node offers to pods
    memory: int | None = None  # bytes of memory that the node offers to pods


def supplies(node: Object, *, tolerated: Collection[str] = TOLERATED) -> list[Supply]:
    """Returns the GPUs of a node, one Supply for each resource name; an empty list for a node without GPUs.

    `tolerated` contains the keys of the taints that Fairlot's pods tolerate.
    """
    labels, status = node["metadata"].get("labels", {}), node.get("status", {})
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    product = labels.get(PRODUCT, "unknown")
    why_not = _why_not(node, tolerated)
    found = []
    for resource in sorted(name for name in capacity if name == GPU or name.startswith(MIG)):
        installed = _whole(capacity[resource])
        if not installed:
            continue
        part = resource.removeprefix(MIG) if resource.startswith(MIG) else ""
        found.append(
            Supply(
                node=node["metadata"]["name"],
                resource=resource,
                product=f"{product} MIG {part}" if part else product,
                part=part,
                installed=installed,
                healthy=min(installed, _whole(allocatable.get(resource, "0"))),
                is_up=_is_ready(node),
                why_not=why_not,
                cpus=_amount(allocatable, "cpu"),
                memory=None if (size := _amount(allocatable, "memory")) is None else int(size),
            )
        )
    return found


def _ready(node: Object) -> Object:
    """Returns the node's Ready condition; an empty dictionary if the node has not reported one yet."""
    found = (one for one in node.get("status", {}).get("conditions", ()) if one["type"] == "Ready")
    return next(found, {})


def _is_ready(node: Object) -> bool:
    return bool(_ready(node).get("status") == "True")


def _why_not(node: Object, tolerated: Collection[str]) -> str:
    if not _is_ready(node):
        said = _ready(node).get("message") or "the node has not reported that it is ready"
        return f"the node is not ready: {said}"
    if node["spec"].get("unschedulable"):
        return "cordoned"
    for taint in node["spec"].get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and taint["key"] not in tolerated:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"tainted {taint['key']}{value}:{taint['effect']}"
    replicas = node["metadata"].get("labels", {}).get(REPLICAS, "1")
    if replicas.isdigit() and int(replicas) > 1:
        return f"the device plugin shares each GPU of the node between {replicas} pods"
    return ""


def used_by_others(pods: Iterable[Object]) -> Counter[tuple[str, str]]:
    """Counts the GPUs that are held by pods that Fairlot did not create. Includes pods that are terminating.

    The keys of the result are pairs: the node, and the resource name of the GPUs.
    """
    used: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        node = pod["spec"].get("nodeName")
        ours = JOB in pod["metadata"].get("labels", {})
        if node and not ours and pod.get("status", {}).get("phase") not in ENDED:
            for resource, gpus in requested(pod).items():
                used[node, resource] += gpus
    return used


def requested(pod: Object) -> Counter[str]:
    """Counts the GPUs that a pod holds, by resource, with the same rule as the Kubernetes scheduler.

    For each resource, the result is the larger of two numbers:

    - while the pod runs: the GPUs of all main containers and sidecars together
    - while the pod starts: the largest number of GPUs that an init container needs together with the sidecars that
      started before it
    """
    together: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in pod["spec"].get("initContainers", ()):
        wants = Counter(dict(_gpus(container)))
        if container.get("restartPolicy") == "Always":
            sidecars += wants
            most |= sidecars
        else:
            most |= sidecars + wants
    for container in pod["spec"].get("containers", ()):
        together += Counter(dict(_gpus(container)))
    return most | (together + sidecars)


def _gpus(container: Object) -> Iterator[tuple[str, int]]:
    # For extended resources request and limit must be equal, and a pod may omit either.
    resources = container.get("resources", {})
    for resource, amount in {**resources.get("requests", {}), **resources.get("limits", {})}.items():
        if resource == GPU or resource.startswith(MIG):
            yield resource, _whole(amount)


def _amount(allocatable: Object, resource: str) -> float | None:
    return float(parse_quantity(allocatable[resource])) if resource in allocatable else None


def _whole(quantity: str | int) -> int:
    """Converts a Kubernetes quantity of GPUs, such as 2, "2" or "2k", to an integer.

    Fractions do not occur, because the API server rejects them for GPUs.
    """
    return int(parse_quantity(quantity))
