"""Lists the jobs on a drained node, as far as a user may see these jobs, and the drained nodes on which given jobs
run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name
from accounting.models import User
from scheduling.jobs.time_limit import latest_ends
from scheduling.models import Job, Lease, Node, Session
from scheduling.sessions.actions import clocks_of


@dataclass(frozen=True, slots=True)
class DrainedJob:
    """A job that holds GPUs of a node that an operator drains or wants to drain."""

    job: Job
    gpus: int  # held on these nodes
    gpus_elsewhere: int  # held on other nodes by the same gang, which stops as a whole
    since: datetime | None  # when the job got the GPUs
    ends: datetime | None  # the latest time at which the job ends, if known


@dataclass(frozen=True, slots=True)
class DrainedJobs:
    """The jobs on some nodes, as a user may see them. `seen` contains the jobs that the user may see. `hidden` is the
    number of the jobs that the user may not see."""

    seen: list[DrainedJob]
    hidden: int


def nodes_drained_under(leases: Iterable[Lease | None]) -> list[Node]:
    """Returns the drained nodes on which the gangs of these leases are starting or running, ordered by name."""
    held = [one.pk for one in leases if one and one.state in (Lease.State.STARTING, Lease.State.RUNNING)]
    drained = (
        Node.objects.filter(state=Node.State.DRAINED, held_gpus__lease__in=held)
        if held
        else Node.objects.none()
    )
    return list(drained.distinct().order_by(*by_name("name")))


def jobs_to_drain(nodes: Collection[Node], user: User) -> DrainedJobs:
    """Returns the jobs that hold GPUs of these nodes now: each job that `user` may see, and the number of the jobs that
    `user` may not see.

    Includes training jobs, sessions and replicas. The job that has held its GPUs longest comes first.
    """
    here = Lease.objects.filter(state__in=Lease.HOLDING, held_gpus__node__in=nodes)
    visible = here.filter(job__in=Job.objects.visible_to(user))
    leases = list(
        visible.annotate(here=Count("held_gpus"))  # counts only GPUs on these nodes
        .select_related("job__tenant", "job__owner", "job__service")
        .defer("job__spec")
        .order_by("held_from", "pk")
    )
    now = now_from_database()
    ends = latest_ends([lease.job for lease in leases], now)
    sessions = {one.pk: one for one in Session.objects.filter(job__in=[lease.job_id for lease in leases])}
    for lease in leases:
        if lease.job_id in sessions:
            latest = clocks_of(sessions[lease.job_id], lease.job, now).ends
            ends |= {lease.job_id: latest} if latest else {}
    seen = []
    for lease in leases:
        gpus = lease.here  # type: ignore[attr-defined]  # annotated above
        seen.append(DrainedJob(lease.job, gpus, lease.gpus - gpus, lease.held_from, ends.get(lease.job_id)))
    return DrainedJobs(seen, here.distinct().count() - len(leases))
