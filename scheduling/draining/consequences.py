"""Says what a drain of nodes leaves: jobs that could start nowhere else, services with fewer replicas, reservations on
these nodes, and the GPUs that stay in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accounting.core.clock import now_from_database
from accounting.models import User
from scheduling.draining.drained_jobs import DrainedJobs
from scheduling.jobs.explain import slots_on
from scheduling.models import AdvanceReservation, AdvanceWindow, Job, Node, Service

MOST_LISTED = 50


@dataclass(frozen=True, slots=True)
class ReplicasLost:
    service: Service
    lost: int  # replicas that hold GPUs of the nodes
    wanted: int


@dataclass(frozen=True, slots=True)
class ReservedThere:
    """An advance reservation with GPUs on the nodes, and its window that is open or comes next."""

    reservation: AdvanceReservation
    window: AdvanceWindow
    gpus: int  # on these nodes


@dataclass(frozen=True, slots=True)
class CapacityLeft:
    """How many GPUs of one generation jobs may start on, with and without the nodes."""

    generation: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Consequences:
    """What a drain leaves, as one reader sees it. `stranded` has at most `MOST_LISTED` of the waiting jobs that could
    start on no other node, the oldest first; `more` is how many others there are, or are hidden from the reader."""

    stranded: list[Job]
    more: int
    services: list[ReplicasLost]
    reservations: list[ReservedThere]
    capacity: list[CapacityLeft]
    stuck: list[Job]  # jobs on the nodes that could continue on no other node
    keeps_nodes: bool  # whether some node of the cluster stays in use


def consequences_of(nodes: Sequence[Node], jobs: DrainedJobs, reader: User) -> Consequences:
    """Returns what a drain of these nodes of one cluster leaves. `jobs`: those that hold GPUs of the nodes."""
    cluster, chosen = nodes[0].cluster_id, {node.pk for node in nodes}
    present = Node.objects.present().filter(cluster=cluster).select_related("generation")
    # Nodes of the set that are drained already count as in use before it.
    in_use = [node for node in present if node.state == Node.State.READY or node.pk in chosen]
    left = [node for node in in_use if node.pk not in chosen]
    waiting = Job.objects.waiting().filter(cluster=cluster)
    stranded = [
        job.pk
        for job in waiting.only("pk", "workers", "gpus_per_worker", "generation_ids")
        if _fits(job, in_use) and not _fits(job, left)
    ]
    seen = Job.objects.visible_to(reader).filter(pk__in=stranded)
    listed = list(
        seen.select_related("tenant", "owner", "service").defer("spec").order_by("pk")[:MOST_LISTED]
    )
    return Consequences(
        stranded=listed,
        more=len(stranded) - len(listed),
        services=_lost(jobs),
        reservations=_reserved(chosen, reader),
        capacity=_capacity(in_use, chosen),
        stuck=[one.job for one in jobs.seen if not _fits(one.job, left)],
        keeps_nodes=bool(left),
    )


def _fits(job: Job, nodes: Sequence[Node]) -> bool:
    return any(slots >= job.workers for slots in slots_on(nodes, job).values())


def _lost(jobs: DrainedJobs) -> list[ReplicasLost]:
    services = {one.job.service.pk: one.job.service for one in jobs.seen if one.job.service}
    lost = Counter(one.job.service_id for one in jobs.seen)
    return [ReplicasLost(service, lost[pk], service.wanted) for pk, service in services.items()]


def _reserved(nodes: set[int], reader: User) -> list[ReservedThere]:
    now = now_from_database()
    seen = AdvanceReservation.objects.visible_to(reader).filter(
        cancelled_at=None, nodes__node__in=nodes, windows__ends__gt=now
    )
    found = []
    for one in seen.distinct().select_related("tenant").prefetch_related("nodes", "windows").order_by("pk"):
        window = next(window for window in one.windows.all() if window.ends > now)
        gpus = sum(row.gpus for row in one.nodes.all() if row.node_id in nodes)
        found.append(ReservedThere(one, window, gpus))
    return sorted(found, key=lambda one: (one.window.begins, one.reservation.pk))


def _capacity(in_use: Sequence[Node], chosen: set[int]) -> list[CapacityLeft]:
    before, taken = Counter[str](), Counter[str]()
    for node in in_use:
        before[node.generation.name] += node.gpus
        taken[node.generation.name] += node.gpus if node.pk in chosen else 0
    return [CapacityLeft(name, before[name], before[name] - gpus) for name, gpus in taken.items() if gpus]
