"""What nodes offer: GPUs by kind, why some cannot be used now, and who else uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kubernetes.utils import parse_quantity

from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.objects import JOB, TOLERATED

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"
PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"
# A pod in these phases has given back what it held.
ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Supply:
    """GPUs of one kind on one node."""

    node: str
    resource: str  # what a pod asks for, such as nvidia.com/gpu
    product: str  # the hardware's own name for its generation, with the slice for MIG
    part: str  # the slice alone; empty for whole GPUs
    installed: int
    healthy: int  # as the device plugin counts them; fewer than installed when some have failed
    is_up: bool
    why_not: str  # in plain words why nothing may be put there now; empty when it may
    cpus: float | None = None  # that pods may have of the node
    memory: int | None = None  # the same, in bytes


def supplies(node: Object, *, tolerated: Collection[str] = TOLERATED) -> list[Supply]:
    """The kinds of GPU that a node has, by resource; none for a node without."""
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
    """What the node says of its being ready; nothing when it has not said so yet."""
    found = (one for one in node.get("status", {}).get("conditions", ()) if one["type"] == "Ready")
    return next(found, {})


def _is_ready(node: Object) -> bool:
    return bool(_ready(node).get("status") == "True")


def _why_not(node: Object, tolerated: Collection[str]) -> str:
    if not _is_ready(node):
        said = _ready(node).get("message") or "it has not said that it is ready"
        return f"not ready: {said}"
    if node["spec"].get("unschedulable"):
        return "cordoned"
    for taint in node["spec"].get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and taint["key"] not in tolerated:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"tainted {taint['key']}{value}:{taint['effect']}"
    replicas = node["metadata"].get("labels", {}).get(REPLICAS, "1")
    if replicas.isdigit() and int(replicas) > 1:
        return f"its GPUs are shared by the device plugin, {replicas} pods each"
    return ""


def used_by_others(pods: Iterable[Object]) -> Counter[tuple[str, str]]:
    """GPUs by (node, resource) that pods hold which are not Fairlot's; those that are going still do."""
    used: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        node = pod["spec"].get("nodeName")
        ours = JOB in pod["metadata"].get("labels", {})
        if node and not ours and pod.get("status", {}).get("phase") not in ENDED:
            for resource, gpus in requested(pod).items():
                used[node, resource] += gpus
    return used


def requested(pod: Object) -> Counter[str]:
    """GPUs of each resource that a pod holds, as the scheduler counts them.

    All containers together and the sidecars, or what one of the init containers needs beside the
    sidecars before it, if that is more.
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
    # For such resources a request must equal the limit; either may be left out.
    resources = container.get("resources", {})
    for resource, amount in {**resources.get("requests", {}), **resources.get("limits", {})}.items():
        if resource == GPU or resource.startswith(MIG):
            yield resource, _whole(amount)


def _amount(allocatable: Object, resource: str) -> float | None:
    return float(parse_quantity(allocatable[resource])) if resource in allocatable else None


def _whole(quantity: str | int) -> int:
    """The API server takes only whole amounts of such resources, in any spelling: 2, "2", "2k"."""
    return int(parse_quantity(quantity))
