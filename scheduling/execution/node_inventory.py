"""Updates the stored nodes of an attached cluster to match observations: nodes appear, change, disappear or return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction

from accounting.access import audit
from accounting.actions import create_generation
from accounting.core.clock import now_from_database
from accounting.models import Generation
from scheduling.backends.base import NodeGpus
from scheduling.clusters.discovery import model_of
from scheduling.core import pubsub
from scheduling.core.enqueue import want_rounds
from scheduling.core.event_texts import sentence_of
from scheduling.core.locks import lock_schedule
from scheduling.core.run_apart import apart
from scheduling.draining.actions import leave_node
from scheduling.leases.reservations import withdraw
from scheduling.models import Cluster, HeldGpu, Lease, Node
from scheduling.models.event_codes import EventCode, Message

GONE = "the node is no longer in the cluster"


@dataclass(frozen=True, slots=True)
class _Shown:
    """The values that an observation gives for the database row of a node.

    `state` is never DRAINED, because only operators drain nodes.
    """

    generation: Generation
    gpus: int
    failed: int
    others: int
    state: str
    reason: str
    cpus: float | None = None
    memory: int | None = None


def apply_offers(*, cluster_id: int, offers: Sequence[NodeGpus]) -> bool:
    """Updates the cluster's nodes to match `offers`, the complete list of observed nodes. Returns whether a node
    changed.

    A node that is not in the list has disappeared. It is deleted if no job ever used it; otherwise its state becomes
    DOWN. A node that an operator drained stays drained.
    """
    shown = {_name(offer): offer for offer in offers}
    known = apart(
        cluster_id,
        sorted({offer.product for offer in offers}),
        lambda some: [(product, _generation(product)) for product in some],
    )
    generations = dict(known)
    lost = Node.objects.filter(cluster=cluster_id).exclude(name__in=shown).values_list("name", flat=True)
    names = [name for name, offer in shown.items() if offer.product in generations]
    changed = apart(cluster_id, [*names, *lost], lambda some: [_apply(cluster_id, some, shown, generations)])
    return any(changed)


@transaction.atomic(durable=True)
def _apply(
    cluster_id: int,
    names: Sequence[str],
    offers: Mapping[str, NodeGpus],
    generations: Mapping[str, Generation],
) -> bool:
    """Updates the nodes in `names`. Returns whether a node changed.

    - `offers`: the observed nodes, by name. A node without an entry has disappeared.
    - `generations`: the generation for each hardware product name.
    """
    lock_schedule(cluster_id)
    now = now_from_database()
    here = Node.objects.filter(cluster=cluster_id, name__in=names).select_related("generation")
    nodes = {node.name: node for node in here}
    changed = False
    for name in names:
        if (offer := offers.get(name)) is None:
            changed |= name in nodes and _lose(nodes[name], now)
            continue
        if name not in nodes:
            nodes[name] = _found(cluster_id, name, offer, generations[offer.product])
            changed = True
        changed |= _show(nodes[name], _shown(offer, generations[offer.product]), now)
    if changed:
        pubsub.publish(f"cluster:{cluster_id}")
        want_rounds(Cluster.objects.filter(pk=cluster_id))
    return changed


def _found(cluster_id: int, name: str, offer: NodeGpus, generation: Generation) -> Node:
    node = Node.objects.create(
        cluster_id=cluster_id,
        name=name,
        host=offer.host,
        resource=offer.resource,
        generation=generation,
        gpus=offer.installed,
    )
    after = {"generation": generation.name, "gpus": offer.installed, "product": offer.product}
    audit.record(actor=None, verb="node.found", target=node, after=after)
    return node


def _shown(offer: NodeGpus, generation: Generation) -> _Shown:
    state = Node.State.READY
    if offer.why_not:
        state = Node.State.CLOSED if offer.is_up else Node.State.DOWN
    return _Shown(
        generation,
        offer.installed,
        offer.failed,
        offer.others,
        state,
        offer.why_not[:200],
        cpus=offer.cpus,
        memory=offer.memory,
    )


def _show(node: Node, shown: _Shown, now: datetime) -> bool:
    """Writes the observed values `shown` to a node's row. Returns whether the row changed.

    First stops the gangs on the node if its GPUs were exchanged or removed, or if GPUs failed and too few working ones
    remain. Changes of state, generation or number of GPUs get an audit event.
    """
    if node.generation_id != shown.generation.pk or shown.gpus < node.gpus:
        shown = _exchange(node, shown, now)
    elif shown.failed > node.failed_gpus:
        _clear_failed(node, shown, now)
    values = {
        "generation": shown.generation,
        "gpus": shown.gpus,
        "failed_gpus": shown.failed,
        "others_gpus": shown.others,
        "cpus": shown.cpus,
        "memory": shown.memory,
        "gone_at": None,
    }
    if node.state != Node.State.DRAINED:  # only an operator sets and removes the state DRAINED
        values |= {"state": shown.state, "state_reason": shown.reason}
    before = {name: getattr(node, name) for name in values}
    if before == values:
        return False
    if before.get("state") != values.get("state"):
        values["state_since"] = now
    for name, value in values.items():
        setattr(node, name, value)
    node.save(update_fields=list(values))
    if node.state in (Node.State.CLOSED, Node.State.DOWN):
        _withdraw_reservations_of(node)
    if "state_since" in values or before["generation"] != node.generation or before["gpus"] != node.gpus:
        told = ("state", "state_reason", "gpus")
        audit.record(
            actor=None,
            verb="node.seen",
            target=node,
            before={name: str(before[name]) for name in told if name in before},
            after={name: str(getattr(node, name)) for name in told} | {"generation": node.generation.name},
        )
    return True


def _exchange(node: Node, shown: _Shown, now: datetime) -> _Shown:
    """Returns the values to store for a node whose GPUs were exchanged or removed.

    - If no gang holds or reserves GPUs of the node: the observed values `shown`.
    - Otherwise: stops the gangs, and returns values that still describe the old GPUs. Their state is CLOSED, so that
      nothing new starts on the node. A later observation stores the new GPUs.
    """
    if not HeldGpu.objects.filter(node=node, lease__state__in=Lease.OPEN).exists():
        return shown
    other = {"node": node.name, "gpus": shown.gpus, "generation": shown.generation.name}
    said = Message.of(EventCode.NODE_EXCHANGED, **other)
    leave_node(node, why=said, now=now)
    why = f"{sentence_of(said)}; jobs on the node are being suspended"[:200]
    return replace(
        shown,
        generation=node.generation,
        gpus=node.gpus,
        failed=0,
        others=0,
        state=Node.State.CLOSED,
        reason=why,
    )


def _clear_failed(node: Node, shown: _Shown, now: datetime) -> None:
    """Stops all gangs on a node if together they hold or reserve more GPUs than the node has working ones.

    Stops all of them, because Fairlot does not know which gang holds a failed GPU.
    """
    works = shown.gpus - shown.failed
    held = HeldGpu.objects.filter(
        node=node, lease__state__in=(Lease.State.STARTING, Lease.State.RUNNING, Lease.State.RESERVED)
    )
    if held.count() > works:
        why = Message.of(EventCode.NODE_LOST_GPUS, node=node.name, works=works, gpus=shown.gpus)
        leave_node(node, why=why, now=now)


def _lose(node: Node, now: datetime) -> bool:
    """Handles the disappearance of a node. Returns whether anything changed.

    - If the node is drained: it stays drained, and its row stores since when it is gone.
    - If no job ever used the node: deletes its row.
    - Otherwise: sets its state to DOWN, and stores since when it is gone.
    """
    is_drained = node.state == Node.State.DRAINED
    if not is_drained and not HeldGpu.objects.filter(node=node).exists():
        audit.record(actor=None, verb="node.gone", target=node, before={"gpus": node.gpus})
        node.delete()
        return True
    if node.gone_at is not None and (is_drained or node.state == Node.State.DOWN):
        return False
    node.gone_at = now
    if not is_drained:
        node.state, node.state_reason, node.state_since = Node.State.DOWN, GONE, now
    node.save(update_fields=["state", "state_reason", "state_since", "gone_at"])
    _withdraw_reservations_of(node)
    audit.record(actor=None, verb="node.gone", target=node, before={"gpus": node.gpus})
    return True


def _withdraw_reservations_of(node: Node) -> None:
    reserved = Lease.objects.filter(state=Lease.State.RESERVED, held_gpus__node=node).distinct()
    withdraw(list(reserved), why=Lease.End.NODE_CLOSED)


def _name(offer: NodeGpus) -> str:
    return f"{offer.host}/{offer.part}" if offer.part else offer.host


def _generation(product: str) -> Generation:
    """Returns the generation for a hardware product name; creates the generation if it does not exist.

    Each MIG profile of a GPU model is a separate generation.
    """
    whole, _, part = product.partition(" MIG ")
    name = f"{model_of(whole)} {part}".strip()
    found = Generation.objects.filter(name=name).first()
    return found or create_generation(actor=None, name=name, description=product)
