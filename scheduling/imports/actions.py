"""Imports past jobs: a published trace becomes a detached cluster with its jobs, leases and bills."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Min

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.hardware import create_generation_within
from accounting.actions.memberships import add_within
from accounting.actions.tenants import archive_within, create_within
from accounting.actions.users import create_user_within
from accounting.core.bulk import insert_rows, number_rows
from accounting.core.calendar import start_of_day
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import ClosedBook, Generation, Membership, Tenant, User
from scheduling.core.locks import lock_schedule
from scheduling.imports.traces import PastJob
from scheduling.leases.actions import bill
from scheduling.leases.lifecycle import Event, next_state
from scheduling.models import Cluster, HeldGpu, ImportedTrace, Job, JobEvent, Lease, Node, NodeChange
from scheduling.models.event_codes import EventCode, Message
from scheduling.spec.job_spec import JobSpec

JOBS_AT_ONCE = 2000

# By the node's index, a list with one entry per GPU: the time until which the GPU is taken.
Taken: TypeAlias = "defaultdict[int, list[datetime]]"


@dataclass(frozen=True, slots=True)
class PastCluster:
    """A cluster of equal nodes to import. It existed from `begins` to `ends`, which are full hours."""

    name: str  # the name of the cluster and of its team
    generation: str  # the generation is created if no generation has this name
    nodes: int
    gpus_per_node: int
    begins: datetime
    ends: datetime


# One transaction, so that no worker closes an hour before all its jobs are stored.
@transaction.atomic(durable=True)
def import_history(
    *, actor: User | None, past: PastCluster, jobs: Sequence[PastJob], fingerprint: str
) -> Cluster:
    """Stores a detached cluster, its teams and their jobs, bills their usage, and archives the teams. Returns the
    cluster.

    Raises Refused in these cases:

    - A cluster or team with the name `past.name` exists.
    - `past.ends` is in the future.
    - A trace with this `fingerprint` was imported before.
    """
    require(actor, "cluster.attach")
    if before := imported_before(fingerprint):
        raise Refused(f"This trace has already been imported as {before}.", "name")
    if past.ends > now_from_database():
        raise Refused("All jobs of the trace must end in the past. Choose an earlier start.", "begins")
    if Cluster.objects.filter(name=past.name).exists():
        raise Refused(f"A cluster named {past.name} already exists.", "name")
    owners = _create_teams(actor, past.name, sorted({job.traced.tenant for job in jobs}))
    generation = Generation.objects.filter(name=past.generation).first()
    generation = generation or create_generation_within(
        actor=actor, generation=Generation(name=past.generation)
    )
    cluster = Cluster.objects.create(name=past.name, detached_at=past.ends)
    lock_schedule(cluster.pk)
    nodes = _create_nodes(cluster, past, generation)
    taken: Taken = defaultdict(list)
    in_order = sorted(jobs, key=lambda job: (job.held.begins, job.traced.number))
    for some in _some(in_order):
        told = [_ImportedJobs(cluster, past, generation, job, owners[job.traced.tenant]) for job in some]
        number_rows([one.job for one in told])
        for one in told:
            one.lease.job = one.job  # set again, because the job has an id only now
        number_rows([one.lease for one in told])
        # Written directly, because the actions of rounds and observations always use the present time.
        insert_rows(one.job for one in told)
        bill([one.lease for one in told], until=None)
        insert_rows(one.lease for one in told)
        insert_rows(event for one in told for event in one.events())
        insert_rows(gpu for one in told for gpu in one.gpus(nodes, taken))
    teams = [owner.tenant for owner in owners.values()]
    _archive(actor, [*teams, *{one.parent for one in teams if one.parent}])
    after = {
        "jobs": len(jobs), "nodes": past.nodes, "gpus": past.gpus_per_node, "begins": past.begins, "ends": past.ends,
        "fingerprint": fingerprint,
    }  # fmt: skip
    ImportedTrace.objects.create(cluster=cluster, fingerprint=fingerprint)
    audit.record(actor=actor, verb="cluster.import", target=cluster, after=after)
    return cluster


def _some(jobs: Sequence[PastJob]) -> Iterator[Sequence[PastJob]]:
    for start in range(0, len(jobs), JOBS_AT_ONCE):
        yield jobs[start : start + JOBS_AT_ONCE]


def _create_nodes(cluster: Cluster, past: PastCluster, generation: Generation) -> list[Node]:
    """Creates the nodes of the imported cluster, as nodes that no longer exist.

    Records their history: each node appears at `past.begins` with its GPUs, and disappears at `past.ends`.
    """
    width = len(str(past.nodes - 1))
    nodes = [
        Node(
            cluster=cluster, name=f"{past.name}-{number:0{width}}", generation=generation,
            gpus=past.gpus_per_node, gone_at=past.ends, state_since=past.ends, virtual_speed=1,
        )
        for number in range(past.nodes)
    ]  # fmt: skip
    number_rows(nodes)
    insert_rows(nodes)
    insert_rows(
        NodeChange(
            cluster=cluster, node_id=node.pk, name=node.name, generation=generation, gpus=gpus,
            state=node.state, failed_gpus=0, others_gpus=0, at=at,
        )
        for node in nodes
        for at, gpus in ((past.begins, past.gpus_per_node), (past.ends, 0))
    )  # fmt: skip
    return nodes


class _ImportedJobs:
    """The database rows of an imported job: the job, its lease, its events and its GPUs."""

    def __init__(
        self, cluster: Cluster, past: PastCluster, generation: Generation, job: PastJob, owner: Membership
    ) -> None:
        self.place = job
        at = past.begins + timedelta(seconds=job.traced.submitted)
        begins = self.begins = past.begins + timedelta(seconds=job.held.begins)
        ends = self.ends = past.begins + timedelta(seconds=job.held.ends)
        spec = JobSpec(
            name=f"job {job.traced.number}",
            command="true",
            workers=job.workers,
            gpus_per_worker=job.gpus_per_worker,
        )
        state: str = Job.State.QUEUED
        for event in (Event.PICKED, Event.STARTED, Event.SUCCEEDED):
            state = next_state(state, event)
        self.job = Job(
            cluster=cluster, tenant=owner.tenant, owner=owner.user, name=spec.name, spec=spec.to_dict(),
            workers=job.workers, gpus_per_worker=job.gpus_per_worker, state=state, epoch=1, created_at=at,
            state_since=ends, first_started_at=begins, first_generation=generation, held_for=ends - begins,
            ended_at=ends, files_removed_at=ends, exit_code=0, end_reason=Job.End.SUCCEEDED,
        )  # fmt: skip
        self.lease = Lease(
            job=self.job, cluster=cluster, generation=generation, epoch=1, gpus=self.job.gpus,
            state=Lease.State.CLOSED, decided_at=begins, held_from=begins, running_from=begins,
            held_until=ends, last_seen_at=ends, end_reason=Lease.End.SUCCEEDED,
        )  # fmt: skip

    def events(self) -> Iterator[JobEvent]:
        told = (
            (self.job.created_at, 0, "submitted", EventCode.IMPORTED),
            (self.begins, 1, Event.STARTED.value, EventCode.IMPORTED_START),
            (self.ends, 1, Event.SUCCEEDED.value, EventCode.IMPORTED_END),
        )
        for at, epoch, kind, code in told:
            yield JobEvent.of(self.job, kind, Message.of(code), at=at, epoch=epoch)

    def gpus(self, nodes: Sequence[Node], taken: Taken) -> Iterator[HeldGpu]:
        """Yields the GPUs that the job held, and marks them in `taken` as busy until the job's end.

        Picks GPUs that are free at the job's start. So this must be called for the jobs in the order of their starts.
        """
        for rank, place in enumerate(self.place.held.place.nodes):
            until = taken[place] = taken[place] or [self.begins] * nodes[place].gpus
            free = [gpu for gpu, moment in enumerate(until) if moment <= self.begins][
                : self.place.gpus_per_worker
            ]
            for gpu in free:
                until[gpu] = self.ends
                yield HeldGpu(
                    lease_id=self.lease.pk, node_id=nodes[place].pk, rank=rank, gpu_index=gpu,
                    during=DateTimeTZRange(self.begins, self.ends),
                )  # fmt: skip


def _create_teams(actor: User | None, name: str, names: Sequence[str]) -> dict[str, Membership]:
    """Creates a team named `name` and, below it, a team with one user for each of `names`. The users cannot sign in.

    Returns a dictionary from each of `names` to the membership of its user.
    """
    parent = create_within(actor=actor, name=name, parent=None, tickets=100)
    found = {}
    for below in names:
        tenant = create_within(actor=actor, name=f"{name} {below}", parent=parent, tickets=100)
        user = create_user_within(actor=actor, user=User(username=f"{parent.slug}-{below}")).user
        found[below] = add_within(actor=actor, membership=Membership(user=user, tenant=tenant))
    return found


def _archive(actor: User | None, teams: Iterable[Tenant]) -> None:
    """Archives the teams, children before parents, so that they take no share of present GPUs."""
    for tenant in sorted(teams, key=lambda one: -one.path.count("/")):
        archive_within(actor=actor, tenant=tenant)


def imported_before(fingerprint: str) -> Cluster | None:
    """Returns the cluster that was imported from the trace with this fingerprint; None if this trace was not
    imported."""
    return Cluster.objects.filter(trace__fingerprint=fingerprint).first()


def hours_to_close(cluster: Cluster) -> int:
    """Returns the number of hours of an imported cluster that are not closed yet.

    The first hour to close begins at midnight (UTC) of the cluster's first day.
    """
    book = ClosedBook.objects.filter(book=cluster.pk).first()
    first = NodeChange.objects.filter(cluster=cluster).aggregate(first=Min("at"))["first"]
    since = book.until if book else start_of_day(first)
    assert cluster.detached_at is not None  # noqa: S101 - it was never attached
    return max((cluster.detached_at - since) // timedelta(hours=1), 0)
