"""Reads this machine's GPUs from the NVIDIA driver and declares (creates) nodes with these GPUs."""

from __future__ import annotations

import re
import socket
from collections import defaultdict

from django.db import transaction

from accounting.access import audit
from accounting.actions import create_generation
from accounting.core.errors import Refused
from accounting.models import Generation, User
from scheduling.backends.local.gpus import Gpu, discover
from scheduling.clusters.actions import declare_node
from scheduling.core.locks import lock_schedule
from scheduling.models import Cluster, Lease, Node

MODEL = re.compile(r"\b(RTX \w*\d{3,4}( Ti| SUPER)?|[A-Z]{1,2}\d{1,4}[A-Z]?)\b", re.ASCII)
NOT_IN_NAMES = re.compile(r"[^-A-Za-z0-9 ._+()]+")  # characters that the name of a generation must not have
GIB = 1024**3


def declare_local_gpus(*, actor: User | None, cluster: Cluster) -> list[Node]:
    """Declares one node for each GPU model of this machine, and returns the nodes. Returns an empty list without a
    driver or GPU.

    A node that already exists stays unchanged. But if its GPUs were replaced, the node gets the UUIDs of the new GPUs.
    Raises Refused if jobs hold GPUs of such a node.
    """
    by_model: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in discover():
        by_model[model_of(gpu.product)].append(gpu)
    return [_node(actor, cluster, model, gpus) for model, gpus in sorted(by_model.items())]


def model_of(product: str) -> str:
    """Returns the GPU model in the driver's product name, such as "A100" for "NVIDIA A100-SXM4-80GB".

    If no model is recognised, returns the product name in a form that is valid as a name.
    """
    found = MODEL.search(product)
    return (
        found[0]
        if found
        else NOT_IN_NAMES.sub(" ", product.removeprefix("NVIDIA ")).strip(" -._+()")[:40] or "GPU"
    )


def _node(actor: User | None, cluster: Cluster, model: str, gpus: list[Gpu]) -> Node:
    generation = Generation.objects.filter(name=model).first() or create_generation(
        actor=actor, name=model, description=gpus[0].product, memory_gib=round(gpus[0].memory_bytes / GIB)
    )
    name = f"{socket.gethostname()}-{model}".lower()
    uuids = [gpu.uuid for gpu in gpus]
    node = Node.objects.filter(cluster=cluster, name=name).first()
    if node is None or not node.gpus:
        return declare_node(
            actor=actor, cluster=cluster, name=name, generation=generation, gpus=len(uuids), gpu_uuids=uuids
        )
    return node if node.gpu_uuids == uuids else _exchange(actor, node, uuids)


@transaction.atomic(durable=True)
def _exchange(actor: User | None, node: Node, uuids: list[str]) -> Node:
    """Replaces the GPU UUIDs of the node. Raises Refused while jobs hold GPUs of the node."""
    lock_schedule(node.cluster_id)
    if Lease.objects.filter(held_gpus__node=node, state__in=Lease.OPEN).exists():
        raise Refused(f"Jobs hold GPUs of {node.name}. Drain the node first, then detect its GPUs again.")
    before = {"gpu_uuids": node.gpu_uuids}
    node.gpu_uuids, node.gpus = uuids, len(uuids)
    node.save(update_fields=["gpu_uuids", "gpus"])
    audit.record(
        actor=actor, verb="node.exchange_gpus", target=node, before=before, after={"gpu_uuids": uuids}
    )
    return node
