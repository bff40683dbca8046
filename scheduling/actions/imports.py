"""Jobs of the past: a published trace becomes a cluster that is detached again, with its jobs, leases and bills.

Billed and closed by the same functions as what really ran; that they were picked, ran and ended is written as
it was, and not by the actions of rounds and observations, whose times are the present.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting import audit
from accounting.actions import add_member, create_tenant, create_user
from accounting.bulk import insert_rows, number_rows
from accounting.clock import now_from_database
from accounting.errors import Refused
from accounting.models import Generation, Membership, Tenant, User
from accounting.permissions import require_admin
from scheduling.actions.leases import bill
from scheduling.lifecycle import Event, next_state
from scheduling.locks import lock_schedule
from scheduling.models import Cluster, HeldGpu, Job, JobEvent, Lease, Node, NodeChange
from scheduling.spec import JobSpec
from scheduling.traces import PastJob

JOBS_AT_ONCE = 2000

# By place of the node: until when each of its GPUs is taken.
Taken: TypeAlias = "defaultdict[int, list[datetime]]"


@dataclass(frozen=True, slots=True)
class PastCluster:
    """Equal nodes that were there from one full hour to another, and are no more."""

    name: str
    generation: Generation
    nodes: int
    gpus_per_node: int
    begins: datetime
    ends: datetime


@transaction.atomic(durable=True)
def import_history(
    *, actor: User | None, past: PastCluster, jobs: Sequence[PastJob], owners: Mapping[str, Membership]
) -> Cluster:
    """Stores a detached cluster, what these jobs did on it, and bills that.

    All at once, so that nobody closes an hour of which some is still to come. `owners` are who had the jobs, by
    tenant in the trace. Refused when there is a cluster of that name.
    """
    require_admin(actor)
    if past.ends > now_from_database():
        raise Refused("What is imported must be over by now; let it begin earlier.", "begins")
    if Cluster.objects.filter(name=past.name).exists():
        raise Refused(f"There is a cluster {past.name} already.", "name")
    cluster = Cluster.objects.create(name=past.name, detached_at=past.ends)
    lock_schedule(cluster.pk)
    nodes = _create_nodes(cluster, past)
    taken: Taken = defaultdict(list)
    in_order = sorted(jobs, key=lambda job: (job.held.begins, job.traced.number))
    for some in _some(in_order):
        told = [_Told(cluster, past, job, owners[job.traced.tenant]) for job in some]
        number_rows([one.job for one in told])
        for one in told:
            one.lease.job = one.job  # which has a number now
        number_rows([one.lease for one in told])
        insert_rows(one.job for one in told)
        bill([one.lease for one in told], until=None)
        insert_rows(one.lease for one in told)
        insert_rows(event for one in told for event in one.events())
        insert_rows(gpu for one in told for gpu in one.gpus(nodes, taken))
    after = {
        "jobs": len(jobs), "nodes": past.nodes, "gpus": past.gpus_per_node, "begins": past.begins, "ends": past.ends
    }  # fmt: skip
    audit.record(actor=actor, verb="cluster.import", target=cluster, after=after)
    return cluster


def _some(jobs: Sequence[PastJob]) -> Iterator[Sequence[PastJob]]:
    for start in range(0, len(jobs), JOBS_AT_ONCE):
        yield jobs[start : start + JOBS_AT_ONCE]


def _create_nodes(cluster: Cluster, past: PastCluster) -> list[Node]:
    """They are gone; what they had been is written down beside what the database notes of them now."""
    width = len(str(past.nodes - 1))
    nodes = [
        Node(
            cluster=cluster, name=f"{past.name}-{number:0{width}}", generation=past.generation,
            gpus=past.gpus_per_node, gone_at=past.ends, state_since=past.ends, virtual_speed=1,
        )
        for number in range(past.nodes)
    ]  # fmt: skip
    number_rows(nodes)
    insert_rows(nodes)
    insert_rows(
        NodeChange(
            cluster=cluster, node_id=node.pk, name=node.name, generation=past.generation, gpus=gpus,
            state=node.state, failed_gpus=0, others_gpus=0, at=at,
        )
        for node in nodes
        for at, gpus in ((past.begins, past.gpus_per_node), (past.ends, 0))
    )  # fmt: skip
    return nodes


class _Told:
    """One job with its lease."""

    def __init__(self, cluster: Cluster, past: PastCluster, job: PastJob, owner: Membership) -> None:
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
            state_since=ends, first_started_at=begins, first_generation=past.generation, held_for=ends - begins,
            ended_at=ends, files_removed_at=ends, exit_code=0, end_reason="exit",
        )  # fmt: skip
        self.lease = Lease(
            job=self.job, cluster=cluster, generation=past.generation, epoch=1, gpus=self.job.gpus,
            state=Lease.State.CLOSED, decided_at=begins, held_from=begins, running_from=begins,
            held_until=ends, last_seen_at=ends, end_reason="exit",
        )  # fmt: skip

    def events(self) -> Iterator[JobEvent]:
        told = (
            (self.job.created_at, 0, "submitted", "Imported from a trace"),
            (self.begins, 1, Event.STARTED.value, "Ran, as the trace tells"),
            (self.ends, 1, Event.SUCCEEDED.value, "Ended, as the trace tells"),
        )
        for at, epoch, kind, text in told:
            yield JobEvent(job_id=self.job.pk, at=at, epoch=epoch, kind=kind, text=text, detail={})

    def gpus(self, nodes: Sequence[Node], taken: Taken) -> Iterator[HeldGpu]:
        """Of each node those that nobody has any more; jobs come in the order in which they began."""
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


def create_past_tenants(*, actor: User | None, parent: Tenant, names: Sequence[str]) -> dict[str, Membership]:
    """A team below `parent` for each of these names, with a user of the same name who cannot sign in."""
    found = {}
    for name in names:
        full = f"{parent.name} {name}"
        tenant = Tenant.objects.filter(name=full, parent=parent).first()
        tenant = tenant or create_tenant(actor=actor, name=full, parent=parent)
        membership = Membership.objects.filter(tenant=tenant).select_related("user", "tenant").first()
        if membership is None:
            username = f"{parent.slug}-{name}"
            user = User.objects.filter(username=username).first()
            user = user or create_user(actor=actor, username=username).user
            membership = add_member(actor=actor, tenant=tenant, user=user)
        found[name] = membership
    return found
