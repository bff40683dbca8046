"""What the home page says at a glance: my jobs, my teams' share now, the machines now."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet, Sum

from accounting.models import Tenant, User
from scheduling.models import Cluster, Job, Lease, Node, Round


@dataclass(frozen=True)
class Counts:
    running: int
    gpus: int  # that the running ones hold
    waiting: int
    succeeded: int
    failed: int
    all: int


@dataclass(frozen=True)
class ShareNow:
    """GPUs of one generation: all there are, what the teams are entitled to and hold."""

    generation: str
    size: int
    entitled: float
    held: int


@dataclass(frozen=True)
class Machines:
    generation: str
    total: int
    busy: int
    away: int

    @property
    def free(self) -> int:
        return max(0, self.total - self.busy - self.away)


def count_jobs(jobs: QuerySet[Job]) -> Counts:
    """Ended ones of all time."""
    return Counts(
        gpus=sum(_held(Q(job__in=jobs)).values()),
        **jobs.aggregate(
            running=Count("pk", filter=Q(state__in=Job.HOLDING)),
            waiting=Count("pk", filter=Q(state__in=Job.WAITING)),
            succeeded=Count("pk", filter=Q(state=Job.State.SUCCEEDED)),
            failed=Count("pk", filter=Q(state=Job.State.FAILED)),
            all=Count("pk"),
        ),
    )


def own_teams(user: User) -> list[Tenant]:
    """The teams in which the user has a role of its own, without those below them."""
    return list(Tenant.objects.active().filter(memberships__user=user).order_by("name"))


def share_now(teams: list[Tenant]) -> list[ShareNow]:
    """Of all `teams` and what lies below them together, by the last round of each cluster."""
    below = set(Tenant.objects.subtree_of([team.pk for team in teams]).values_list("pk", flat=True))
    entitled: dict[int, float] = defaultdict(float)
    for cluster in Cluster.objects.attached():
        last = Round.objects.filter(cluster=cluster).only("shares").first()
        for rate in last.shares if last else []:
            if rate["tenant"] in below:
                entitled[rate["generation"]] += rate["entitled"]
    held = _held(Q(job__tenant__in=below))
    sizes = _nodes().values_list("generation", "generation__name").annotate(size=Sum("gpus"))
    return [
        ShareNow(name, size, entitled[pk], held.get(pk, 0))
        for pk, name, size in sizes.order_by("generation__name")
    ]


def machines_now() -> list[Machines]:
    """Every generation of all clusters."""
    busy = _held(Q())
    rows = (
        _nodes()
        .values("generation", "generation__name")
        .annotate(total=Sum("gpus"), away=Sum("gpus", filter=~Q(state=Node.State.READY), default=0))
    )
    return [
        Machines(row["generation__name"], row["total"], busy.get(row["generation"], 0), row["away"])
        for row in rows.order_by("generation__name")
    ]


def _nodes() -> QuerySet[Node]:
    return Node.objects.filter(cluster__in=Cluster.objects.attached())


def _held(leases: Q) -> dict[int, int]:
    rows = (
        Lease.objects.filter(leases, state__in=Lease.HOLDING).values_list("generation").annotate(Sum("gpus"))
    )
    return dict(rows.order_by("generation"))
