"""Drains nodes, and puts drained nodes back into use. Nothing new starts on a drained node; its jobs finish or are
stopped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import models, transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_choice
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_operations
from scheduling.core.locks import lock_schedule
from scheduling.leases.actions import StopOrder, ask_to_stop, end_frozen
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.leases.reservations import withdraw
from scheduling.models import Lease, Node, Operation
from scheduling.models.event_codes import Cause, EventCode, Message


class DrainMode(models.TextChoices):
    """What happens to the jobs on a node when it is drained."""

    FINISH = "finish", "Let running jobs finish"
    DEADLINE = "deadline", "Let running jobs continue until a deadline"
    NOW = "now", "Stop running jobs now"


def drain_node(
    *,
    actor: User,
    node: Node,
    reason: str,
    mode: str = DrainMode.FINISH,
    deadline: datetime | None = None,
) -> None:
    """Drains one node, as `drain_nodes` does."""
    drain_nodes(actor=actor, nodes=[node], reason=reason, mode=mode, deadline=deadline)


@transaction.atomic(durable=True)
def drain_nodes(
    *,
    actor: User,
    nodes: Sequence[Node],
    reason: str,
    mode: str = DrainMode.FINISH,
    deadline: datetime | None = None,
) -> None:
    """Drains nodes of one cluster together, so that nothing new starts on them: all of them, or none if it is refused.

    If a node is drained already, changes the reason, mode and deadline.

    - Mode *finish*: running jobs finish.
    - Mode *deadline*: jobs that still run at the deadline are stopped with their grace period, and wait for other
      nodes.
    - Mode *now*: all jobs are stopped immediately, with their grace period, and wait for other nodes.

    Raises Refused without a node, for an unknown mode, and for a deadline that is missing, in the past, or given with
    another mode.
    """
    require(actor, "node.drain")
    cluster_id = _cluster_of(nodes)
    lock_schedule(cluster_id)
    now = now_from_database()
    check_choice("mode", mode, DrainMode.values, "mode")
    if (deadline is not None) != (mode == DrainMode.DEADLINE):
        raise Refused(
            "Enter when running jobs will be stopped, or choose another option than “Let running jobs continue until a "
            "deadline”."
            if deadline is None
            else "Only “Let running jobs continue until a deadline” has a deadline. Choose it, or remove the deadline.",
            field="deadline",
        )
    if deadline is not None and deadline <= now:
        raise Refused("The deadline must be in the future.", field="deadline")
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(
        state=Node.State.DRAINED, state_reason=reason[:200], state_since=now, drain_deadline=deadline
    )
    until = deadline and deadline.astimezone(UTC).isoformat()
    for node in nodes:
        after = {"reason": reason, "mode": str(mode), "deadline": until}
        audit.record(actor=actor, verb="node.drain", target=node, after=after)
        why = _why(node, reason)
        if mode == DrainMode.NOW:
            leave_node(node, why=why, now=now)
            continue
        history = History()
        _let_nothing_start(node, why=why, now=now, history=history)
        for lease in _leases_on(node):
            history.change(lease.job)  # marks the job as changed, so that its open pages update
            history.note(lease.job, "draining", why.but(until=until), at=now, epoch=lease.epoch)
        history.save()
    pubsub.publish(f"cluster:{cluster_id}")


def return_node(*, actor: User, node: Node) -> None:
    """Puts one node back into use, as `return_nodes` does."""
    return_nodes(actor=actor, nodes=[node])


@transaction.atomic(durable=True)
def return_nodes(*, actor: User, nodes: Sequence[Node]) -> None:
    """Puts nodes of one cluster back into use that were drained or have disappeared. Jobs that still run on the nodes
    continue. Jobs that the drain stopped keep waiting until a round starts them."""
    require(actor, "node.drain")
    cluster_id = _cluster_of(nodes)
    lock_schedule(cluster_id)
    now = now_from_database()
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(
        state=Node.State.READY, state_reason="", state_since=now, drain_deadline=None
    )
    for node in nodes:
        audit.record(actor=actor, verb="node.return", target=node)
    pubsub.publish(f"cluster:{cluster_id}")


def _cluster_of(nodes: Sequence[Node]) -> int:
    """Returns the id of the cluster of these nodes. Raises Refused if there is no node, or if they are of several."""
    clusters = {node.cluster_id for node in nodes}
    if len(clusters) != 1:
        raise Refused("Choose one or more nodes of one cluster.", "nodes")
    return clusters.pop()


def drains_due(now: datetime) -> list[int]:
    """Returns the ids of drained nodes whose deadline has passed."""
    due = Node.objects.filter(state=Node.State.DRAINED, drain_deadline__lte=now)
    return list(due.order_by("pk").values_list("pk", flat=True))


@transaction.atomic(durable=True)
def end_drain(*, node_id: int) -> bool:
    """Stops the jobs on a drained node whose deadline has passed.

    Does nothing and returns False if the node is not drained, or if its deadline has not passed. For example, an
    operator may have extended the deadline in the meantime.
    """
    cluster = Node.objects.filter(pk=node_id).values_list("cluster_id", flat=True).first()
    if cluster is None:
        return False
    lock_schedule(cluster)
    now = now_from_database()
    node = Node.objects.filter(pk=node_id, state=Node.State.DRAINED, drain_deadline__lte=now).first()
    if node is None:  # the node was returned to use, or got a later deadline, meanwhile
        return False
    Node.objects.filter(pk=node_id).update(drain_deadline=None)
    after = {"deadline": node.drain_deadline and node.drain_deadline.isoformat()}
    audit.record(actor=None, verb="node.drain_deadline", target=node, after=after)
    leave_node(node, why=_why(node, node.state_reason), now=now)
    pubsub.publish(f"cluster:{cluster}")
    return True


def leave_node(node: Node, *, why: Message, now: datetime) -> None:
    """Stops every gang that has a worker on the node, within the caller's transaction.

    The caller holds the cluster's scheduling lock. `why` is the message in the histories of the jobs.
    """
    history = History()
    _let_nothing_start(node, why=why, now=now, history=history)
    orders = [StopOrder(lease, why, Cause.DRAINED) for lease in _leases_on(node)]
    ask_to_stop(orders, event=Event.PREEMPTED, now=now, history=history)
    history.save()


def _let_nothing_start(node: Node, *, why: Message, now: datetime, history: History) -> None:
    """Makes sure that no gang starts or resumes on the node: withdraws reservations of the node's GPUs, and ends gangs
    whose processes are frozen there."""
    leases = _leases_on(node)
    withdraw([lease for lease in leases if lease.state == Lease.State.RESERVED], why=Lease.End.DRAINED)
    for lease in [lease for lease in leases if lease.state == Lease.State.STOPPING]:
        Operation.objects.get_or_create(cluster_id=node.cluster_id, lease=lease, verb=Operation.Verb.STOP)
        wake_operations(node.cluster_id)
    asleep = Lease.objects.filter(cluster=node.cluster_id).of_frozen_processes()
    for lease in Lease.objects.filter(pk__in=asleep.values("pk"), held_gpus__node=node).distinct():
        end_frozen(lease.job, verb=Operation.Verb.STOP)
        history.change(lease.job, frozen=False)
        history.note(lease.job, "unfrozen", why.but(starts_again=True), at=now, epoch=lease.epoch)


def _leases_on(node: Node) -> list[Lease]:
    found = Lease.objects.filter(held_gpus__node=node, state__in=Lease.OPEN)
    return list(found.distinct().select_related("job"))


def _why(node: Node, reason: str) -> Message:
    return Message.of(EventCode.DRAINED, node=node.name, reason=reason)
