"""Closes the books of a cluster hour by hour: records how the GPU time was used, from node changes and leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Count, Min, Q, QuerySet

from accounting.closing.gpu_classes import Allocation, Availability, Condition
from accounting.closing.hours import NodeHistory, close_empty_days, close_hour, open_book
from accounting.core.calendar import HOUR, MICROSECOND, start_of_day
from accounting.core.clock import now_from_database
from scheduling.core.locks import lock_schedule
from scheduling.leases.gpu_use import Stretch, unused_of
from scheduling.models import Cluster, HeldGpu, Lease, Node, NodeChange
from scheduling.models.leases import LeaseQuerySet

AVAILABILITY = {
    Node.State.READY: Availability.READY,
    Node.State.DRAINED: Availability.DRAINED,
    Node.State.CLOSED: Availability.DRAINED,
    Node.State.DOWN: Availability.DOWN,
}
# Events of an hour's last seconds may be recorded late, so an hour is closed only this long after its end.
LATE = timedelta(minutes=1)


def may_be_closed_until(now: datetime) -> datetime:
    """Returns the time up to which hours may be closed: one minute before `now`, because events may be recorded
    late."""
    return now - LATE


def clusters_to_close() -> list[int]:
    """Returns the ids of all clusters. Includes detached clusters, whose books record that they have no GPUs."""
    return list(Cluster.objects.order_by("pk").values_list("pk", flat=True))


def close_hours(*, cluster_id: int, at_most: int = 200) -> int:
    """Closes up to `at_most` hours that are over and fully billed, oldest first. Returns the number of closed hours.

    Each hour is closed in its own transaction. Successive days without GPUs are closed together and count as one hour.
    """
    closed = 0
    while closed < at_most and close_next_hour(cluster_id=cluster_id):
        closed += 1
    return closed


@transaction.atomic(durable=True)
def close_next_hour(*, cluster_id: int) -> bool:
    """Closes the first hour that is still open. Returns False if that hour is not over or not fully billed.

    If the hour begins a day on which the cluster had no GPUs, closes this day and the days without GPUs that
    directly follow it, all in one step. A cluster has no GPUs, for example, while it is detached.
    """
    lock_schedule(cluster_id)
    since = NodeChange.objects.filter(cluster=cluster_id).aggregate(first=Min("at"))["first"]
    if since is None:
        return False
    # The book begins at midnight, before the cluster existed, so that rollups contain whole days.
    begins = open_book(book=cluster_id, since=start_of_day(since)).until
    if _close_days_without_gpus(cluster_id, begins):
        return True
    ends = begins + HOUR
    if may_be_closed_until(now_from_database()) < ends or keeping_open(cluster_id, ends).exists():
        return False
    close_hour(book=cluster_id, hour=begins, nodes=list(_stories(cluster_id, begins, ends)))
    return True


def _close_days_without_gpus(cluster_id: int, begins: datetime) -> bool:
    """Closes all whole days from `begins` until the cluster has GPUs or leases again. Returns False if no day was
    closed."""
    today = start_of_day(may_be_closed_until(now_from_database()))
    if begins != start_of_day(begins) or begins >= today:
        return False
    there = [change.gpus > 0 for change in _last_changes(cluster_id, begins)]
    if any(there):
        return False
    changes = NodeChange.objects.filter(cluster=cluster_id, gpus__gt=0, at__gt=begins, at__lt=today)
    held = _holding_between(cluster_id, begins, today)
    firsts = [changes.aggregate(first=Min("at"))["first"], held.aggregate(first=Min("held_from"))["first"]]
    until = start_of_day(min([today, *(first for first in firsts if first is not None)]))
    if until <= begins:
        return False
    close_empty_days(book=cluster_id, until=until)
    return True


def keeping_open(cluster_id: int, ends: datetime) -> LeaseQuerySet:
    """Returns the leases that keep the hour before `ends` from being closed.

    These leases held GPUs before `ends`, but are not billed up to `ends` yet.
    """
    return Lease.objects.filter(cluster=cluster_id, state__in=Lease.HOLDING, held_from__lt=ends).filter(
        Q(billed_until=None) | Q(billed_until__lt=ends)
    )


def note_all_nodes(cluster: Cluster, *, gone: bool) -> None:
    """Inserts a NodeChange for each node of the cluster: with 0 GPUs if `gone` is True, otherwise with the node's
    present state."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO scheduling_nodechange (
                cluster_id, node_id, name, generation_id, gpus, state, failed_gpus, others_gpus, at)
            SELECT cluster_id, id, name, generation_id, CASE WHEN %s OR gone_at IS NOT NULL THEN 0 ELSE gpus END,
                   state, failed_gpus, others_gpus, scheduling_moment_of_change(cluster_id, id)
              FROM scheduling_node WHERE cluster_id = %s ORDER BY id
            """,
            [gone, cluster.pk],
        )


def _stories(cluster_id: int, begins: datetime, ends: datetime) -> Iterable[NodeHistory]:
    conditions: dict[int, list[Condition]] = defaultdict(list)
    names: dict[int, str] = {}
    for change in changes_of_nodes(cluster_id, begins, ends):
        names[change.node_id] = change.name
        conditions[change.node_id].append(_condition(change, begins))
    allocations = _allocations(cluster_id, begins, ends)
    unknown = allocations.keys() - names.keys()
    names |= dict(Node.objects.filter(pk__in=unknown).values_list("pk", "name"))
    for node in sorted(names):
        yield NodeHistory(node, names[node], conditions[node], allocations[node])


def changes_of_nodes(cluster_id: int, begins: datetime, ends: datetime) -> list[NodeChange]:
    """Returns the changes of nodes that matter for the time from `begins` to `ends`.

    The first items are each node's last change at or before `begins`. Then come all changes after `begins` up to
    `ends`, oldest first.
    """
    later = NodeChange.objects.filter(cluster=cluster_id, at__gt=begins, at__lte=ends)
    return [*_last_changes(cluster_id, begins), *later.order_by("at", "id")]


def _last_changes(cluster_id: int, at: datetime) -> QuerySet[NodeChange]:
    """Returns, for each node, its last change at or before the time `at`."""
    changes = NodeChange.objects.filter(cluster=cluster_id, at__lte=at)
    return changes.order_by("node_id", "-at", "-id").distinct("node_id")


def _holding_between(cluster_id: int, begins: datetime, ends: datetime) -> LeaseQuerySet:
    return Lease.objects.filter(cluster=cluster_id, held_from__lt=ends).filter(
        Q(state__in=Lease.HOLDING) | Q(state=Lease.State.CLOSED, held_until__gt=begins)
    )


def _condition(change: NodeChange, begins: datetime) -> Condition:
    return Condition(
        since=(change.at - begins) // MICROSECOND,
        generation=change.generation_id,
        gpus=change.gpus,
        availability=AVAILABILITY[Node.State(change.state)],
        failed=change.failed_gpus,
        others=change.others_gpus,
    )


def _allocations(cluster_id: int, begins: datetime, ends: datetime) -> dict[int, list[Allocation]]:
    """Returns, by node id, an Allocation for each gang that held GPUs of the node between `begins` and `ends`.

    A gang that still holds its GPUs counts up to `ends`.
    """
    leases = _holding_between(cluster_id, begins, ends)
    held = {one.pk: one for one in leases.only("generation_id", "held_from", "held_until", "running_from")}
    places = HeldGpu.objects.filter(lease__in=leases).order_by().values_list("lease_id", "node_id")
    unused = unused_of(held, begins, ends)
    found: dict[int, list[Allocation]] = defaultdict(list)
    for lease, node, gpus in places.annotate(gpus=Count("pk")):
        found[node].append(_allocation(held[lease], gpus, unused.get(lease, ()), begins, ends))
    return found


def _allocation(
    lease: Lease, gpus: int, unused: Iterable[Stretch], begins: datetime, ends: datetime
) -> Allocation:
    def since(moment: datetime | None, otherwise: datetime) -> int:
        return ((moment or otherwise) - begins) // MICROSECOND

    return Allocation(
        generation=lease.generation_id,
        gpus=gpus,
        begins=since(lease.held_from, begins),
        ends=since(lease.held_until, ends),
        assembled=None if lease.running_from is None else since(lease.running_from, ends),
        unused=[(since(start, begins), since(end, ends)) for start, end in unused],
    )
