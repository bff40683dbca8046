"""Reserved leases: a gang reserves GPUs that other leases still hold, and starts when these GPUs are free.

All functions run within the caller's transaction. The caller holds the cluster's scheduling lock and saves `history`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.closing.hours import closed_until
from accounting.core.bulk import array, insert_rows, insert_values, number_rows, update_rows
from accounting.models.tenants import members_among
from scheduling.core.enqueue import wake_operations, want_rounds
from scheduling.leases.history import History
from scheduling.leases.lifecycle import Event
from scheduling.limits.concurrency import that_fit
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, Operation
from scheduling.models.event_codes import EventCode, LeaseEnd, Message

MOST_NODES = 3  # the most nodes that one sentence names


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU of a gang: the rank of the worker that uses it, the node's id, and the GPU's index on the node."""

    rank: int
    node: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """A lease in state reserved, with the GPUs that it reserves."""

    lease: Lease
    places: Sequence[Place]


def reserve(
    new: Sequence[Reservation], *, busy: set[tuple[int, int]], now: datetime, history: History
) -> None:
    """Stores new leases. Immediately starts each lease whose job waits and whose GPUs are all free.

    `busy` has a (node id, GPU index) pair for each GPU that another lease still holds. A lease starts only if the
    limits on concurrent GPUs leave room for it. GPUs of stopping leases still count towards these limits.
    """
    if not new:
        return
    number_rows([one.lease for one in new])
    free = [
        one
        for one in new
        if one.lease.job.state in Job.WAITING
        and not any((place.node, place.gpu) in busy for place in one.places)
    ]
    begun = {lease.pk for lease in that_fit([one.lease for one in free])}
    ready = [one for one in free if one.lease.pk in begun]
    operations = _begin(ready, now=now, history=history)
    insert_rows(one.lease for one in new)
    insert_values(
        HeldGpu,
        ["lease", "node", "rank", "gpu_index", "during"],
        (
            (one.lease.pk, place.node, place.rank, place.gpu, during)
            for one in new
            for during in [
                DateTimeTZRange(one.lease.held_from, None, "[)") if one.lease.pk in begun else None
            ]
            for place in one.places
        ),
    )
    _order(operations)


def advance(cluster_id: int, *, now: datetime, history: History) -> int:
    """Starts gangs whose reserved GPUs are all free now. Returns the number of started gangs.

    A gang starts only if the limits on concurrent GPUs leave room for it. Withdraws the reservations of owners who may
    no longer submit in the team.
    """
    reserved = Lease.objects.filter(cluster=cluster_id, state=Lease.State.RESERVED)
    # A gang that moves to other GPUs starts only after it has left its old ones: its job waits then.
    waiting = reserved.filter(job__state__in=Job.WAITING).order_by("id")
    owners = {pk: pair for pk, *pair in waiting.values_list("pk", "job__tenant", "job__owner")}
    members = members_among({(tenant, owner) for tenant, owner in owners.values()})
    wanted: dict[int, list[Place]] = {pk: [] for pk, pair in owners.items() if tuple(pair) in members}
    if len(wanted) < len(owners):
        withdraw(list(reserved.filter(pk__in=owners.keys() - wanted.keys())), why=Lease.End.OWNER_MAY_NOT)
        want_rounds(Cluster.objects.filter(pk=cluster_id))
    if not wanted:
        return 0
    gpus = HeldGpu.objects.filter(lease__cluster=cluster_id).order_by()
    places = gpus.filter(lease__state=Lease.State.RESERVED)
    for lease, rank, node, gpu in places.values_list("lease_id", "rank", "node_id", "gpu_index"):
        if lease in wanted:
            wanted[lease].append(Place(rank, node, gpu))
    taken = set(gpus.filter(lease__state__in=Lease.HOLDING).values_list("node_id", "gpu_index"))
    ready: list[int] = []
    for pk, its_places in wanted.items():
        its_gpus = {(place.node, place.gpu) for place in its_places}
        if not its_gpus & taken:
            taken |= its_gpus
            ready.append(pk)
    if not ready:
        return 0
    leases = Lease.objects.filter(pk__in=ready).select_related("job", "generation").defer("job__spec")
    begun = [Reservation(lease, wanted[lease.pk]) for lease in that_fit(leases.order_by("id"))]
    if not begun:
        return 0
    operations = _begin(begun, now=now, history=history)
    update_rows([one.lease for one in begun], ["state", "held_from", "last_seen_at"])
    write_times(one.lease.pk for one in begun)
    _order(operations)
    return len(begun)


def withdraw(leases: Sequence[Lease], *, why: LeaseEnd) -> None:
    """Withdraws reservations: closes the leases, and deletes the rows of their GPUs, which they have never held."""
    HeldGpu.objects.filter(lease__in=leases).delete()
    Lease.objects.filter(pk__in=[lease.pk for lease in leases], state=Lease.State.RESERVED).update(
        state=Lease.State.CLOSED, end_reason=why
    )


def write_times(lease_ids: Iterable[int]) -> None:
    """Copies the start and end of each lease, as a range, to the column `during` of the lease's HeldGpu rows.

    If the lease ended at the time when it began, the range is empty.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE scheduling_heldgpu AS gpu
               SET during = tstzrange(lease.held_from, lease.held_until, '[)')
              FROM scheduling_lease AS lease
             WHERE lease.id = ANY(%s::bigint[]) AND gpu.lease_id = lease.id
            """,
            [array(lease_ids)],
        )


def _begin(begun: Sequence[Reservation], *, now: datetime, history: History) -> list[Operation]:
    """Starts leases at `now`. Returns unsaved operations that start or thaw the processes of the leases.

    If the clock was set back, a lease may start later than `now`. It starts after all hours that the ledger has already
    closed, and after the ends of earlier leases of its GPUs.
    """
    if not begun:
        return []
    nodes = {place.node for one in begun for place in one.places}
    names = dict(Node.objects.filter(pk__in=nodes).values_list("id", "name"))
    # A clock that was ahead may have closed future hours, and GPU time in closed hours cannot be billed.
    earliest = max(now, closed_until(begun[0].lease.cluster_id) or now)
    free_from = _free_from(nodes, now)
    operations = []
    for one in begun:
        lease, job = one.lease, one.lease.job
        at = max([earliest, *(free_from.get((place.node, place.gpu), now) for place in one.places)])
        lease.state, lease.held_from, lease.last_seen_at = Lease.State.STARTING, at, at
        verb = Operation.Verb.THAW if job.frozen else Operation.Verb.START
        operations.append(Operation(cluster_id=lease.cluster_id, lease=lease, verb=verb))
        history.move(
            job,
            Event.PICKED,
            at=now,
            said=Message.of(
                EventCode.PICKED,
                gpus=lease.gpus,
                generation=lease.generation.name,
                **_where(one.places, names),
            ),
            epoch=lease.epoch,
            reason=0,
            frozen=False,
            first_started_at=job.first_started_at or now,
            first_generation_id=job.first_generation_id or lease.generation_id,
        )
    return operations


def _order(operations: Sequence[Operation]) -> None:
    insert_rows(operations)
    if operations:
        wake_operations(operations[0].cluster_id)


def _free_from(nodes: Iterable[int], now: datetime) -> dict[tuple[int, int], datetime]:
    """Returns, by (node id, GPU index), the latest end of closed leases that end after `now`.

    Such leases exist only if the clock was set back.
    """
    ends: dict[tuple[int, int], datetime] = {}
    later = HeldGpu.objects.filter(
        node__in=nodes, during__overlap=DateTimeTZRange(now, None, "[)"), lease__state=Lease.State.CLOSED
    ).order_by()
    for node, gpu, upper in later.values_list("node_id", "gpu_index", "lease__held_until"):
        ends[node, gpu] = max(ends.get((node, gpu), now), upper or now)
    return ends


def _where(places: Sequence[Place], names: dict[int, str]) -> dict[str, Any]:
    """Returns parameters for a message about the gang's GPUs: the GPU indices by node name.

    If the gang is on more than MOST_NODES nodes, returns only the number of nodes.
    """
    by_node: dict[str, set[int]] = defaultdict(set)
    for place in places:
        by_node[names[place.node]].add(place.gpu)
    if len(by_node) > MOST_NODES:
        return {"places": {}, "nodes": len(by_node)}
    return {"places": {node: sorted(gpus) for node, gpus in by_node.items()}}
