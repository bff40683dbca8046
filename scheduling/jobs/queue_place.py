"""Says at which place of the queue a job is, and which jobs are ahead of it: a waiting job for its start, and a running
job for its next turn.

The order is the one in which stride scheduling (fairshare/policies/gandiva_fair/turns.py) would serve the waiting jobs
in the next quantum if each of them fitted: the user who is furthest behind the share goes first, and each user's jobs
go by priority, then by age. A later job can still start first, because of a guarantee or because it fits, and every
round computes the order again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import F, Q, Sum

from accounting.core.clock import now_from_database
from accounting.core.wording import counted
from accounting.models import User
from fairshare.model import Reason
from fairshare.policies import DEFAULT
from scheduling.models import Cluster, Job, Lease, ShareBalance

MOST_NAMED = 5
# A job with one of these reasons cannot start now, so it is ahead of nobody.
BLOCKED = frozenset({
    Reason.QUOTA_IN_USE, Reason.HOURS_SPENT, Reason.BORROWED_ENOUGH, Reason.TEAM_ARCHIVED, Reason.OWNER_MAY_NOT,
    Reason.NODES_AWAY, Reason.BACKING_OFF, Reason.RETRYING,
})  # fmt: skip
ORDER = "Users furthest behind their share go first, and each user's jobs by priority, then by age."
LOTTERY = "The lottery draws anew in each round who goes first; on average, it is this order."
OTHER_POLICY = "The policy {policy} also weighs other things than this order."


@dataclass(frozen=True, slots=True)
class Ahead:
    """A waiting job that is ahead of another one."""

    pk: int
    name: str
    owner: str
    gpus: int


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The place of a job: 1 is the first of `of` jobs that can use one of its GPU types: the waiting ones, and the job.

    `team_position` is the place among the `team_of` waiting jobs of its team alone. `ahead` names the first of the
    `known` jobs ahead that the reader may see; `others` is the number of the rest, and `others_gpus` what they need.
    `turn` is the earliest time at which a running job may have to give up its GPUs for a turn of others; None for a
    waiting job.
    """

    position: int
    of: int
    team_position: int
    team_of: int
    team: str
    note: str
    ahead: tuple[Ahead, ...]
    known: int
    others: int
    others_gpus: int
    turn: datetime | None = None

    @property
    def sentence(self) -> str:
        if self.turn is not None:
            return self._next_turn
        places = f"{self.position} of {counted(self.of, 'waiting job')} that can use these GPU types"
        if self.of == 1:
            return "No other waiting job can use these GPU types."
        first = " No waiting job is ahead of it." if self.position == 1 else ""
        return f"Place {places}; {self.team_position} of {self.team_of} of {self.team}.{first}"

    @property
    def _next_turn(self) -> str:
        if self.of == 1:
            return "No waiting job can use these GPUs, so the job goes on in its next turn."
        waiting = counted(self.of - 1, "waiting job")
        if self.position == 1:
            return f"The job goes on in its next turn: it is ahead of {waiting} that can use these GPUs."
        go = "goes" if self.position == 2 else "go"
        return (
            f"{self.position - 1} of {waiting} that can use these GPUs {go} first in the next turn, "
            f"from {self.turn:%H:%M:%S} UTC on. The job is then preempted if they do not fit beside it."
        )

    @property
    def more(self) -> int:
        """Returns how many jobs that the reader may see are ahead, but not named."""
        return self.known - len(self.ahead)

    @property
    def rest(self) -> str:
        """Returns the jobs ahead that `ahead` does not name, in words; "" if there are none."""
        told = [f"{self.more} more"] if self.more else []
        if self.others:
            others = f"{counted(self.others, 'job')} of other teams"
            told.append(f"{others} ({counted(self.others_gpus, 'GPU')})")
        return " and ".join(told)


class _Waiting(NamedTuple):
    pk: int
    tenant: int
    owner: int
    priority: int
    gpus: int
    is_preemptible: bool
    reason: int
    held_for: timedelta
    job_order: str

    @property
    def turn(self) -> tuple[int, timedelta, int]:
        """Returns a key that sorts the jobs of one owner: if they share evenly, by the time that they had."""
        had = self.held_for if self.job_order == User.JobOrder.EVEN else timedelta(0)
        return -self.priority, had, self.pk


def queue_place_of(job: Job, reader: User) -> QueuePlace | None:
    """Returns the place of `job` in the queue as `reader` may know it.

    Returns None if the job neither waits nor takes turns, or if it cannot start now wherever it stands in the queue.
    Sessions and replicas that run take no turns: they get notices (scheduling/rounds/notices.py).
    """
    if job.state == Job.State.RUNNING and job.kind == Job.Kind.TRAINING:
        lease = job.leases.filter(state=Lease.State.RUNNING).first()
    elif job.state in Job.WAITING and not Reason(job.reason).is_never and job.reason not in BLOCKED:
        lease = None
    else:
        return None
    if job.state == Job.State.RUNNING and lease is None:  # it stopped at this moment
        return None
    rows = _contenders(job, lease)
    ordered = _in_order(job.cluster, rows, lease)
    at = next((i for i, one in enumerate(ordered) if one.pk == job.pk), None)
    if at is None:  # it started at this moment
        return None
    before = {one.pk: one for one in ordered[:at]}
    seen = Job.objects.visible_to(reader).filter(pk__in=before)
    names = {pk: (name, owner) for pk, name, owner in seen.values_list("pk", "name", "owner__username")}
    known = [one for one in before.values() if one.pk in names]
    rest = [one for one in before.values() if one.pk not in names]
    own = [one.pk for one in ordered if one.tenant == job.tenant_id]
    return QueuePlace(
        position=at + 1,
        of=len(ordered),
        team_position=own.index(job.pk) + 1,
        team_of=len(own),
        team=job.tenant.name,
        note=_note(job.cluster),
        ahead=tuple(Ahead(one.pk, *names[one.pk], one.gpus) for one in known[:MOST_NAMED]),
        known=len(known),
        others=len(rest),
        others_gpus=sum(one.gpus for one in rest),
        turn=_next_turn(job, lease) if lease else None,
    )


def _next_turn(job: Job, lease: Lease) -> datetime:
    """Returns the earliest time at which `job`, which runs under `lease`, may have to give up its GPUs for others."""
    cluster, now = job.cluster, now_from_database()
    if job.preemptible:
        return now
    last = cluster.last_quantum_at or now
    keeps = (lease.running_from or now) + timedelta(seconds=cluster.min_hold_seconds)
    return max(last + timedelta(seconds=cluster.effective_quantum), keeps, now)


def _note(cluster: Cluster) -> str:
    if cluster.policy != DEFAULT:
        return f"{ORDER} {OTHER_POLICY.format(policy=cluster.policy)}"
    return f"{ORDER} {LOTTERY}" if cluster.ordering == Cluster.Ordering.LOTTERY else ORDER


def _contenders(job: Job, lease: Lease | None) -> list[_Waiting]:
    """Returns the waiting jobs that could start on a GPU type that `job` accepts, with `job` itself. If the job runs
    under `lease`, the GPU type is that which it holds."""
    never = [reason for reason in Reason if reason.is_never]
    jobs = Job.objects.filter(cluster=job.cluster_id)
    found = jobs.waiting().exclude(reason__in=[*never, *BLOCKED])
    if kinds := [lease.generation_id] if lease else job.generation_ids:
        found = found.filter(Q(generation_ids=[]) | Q(generation_ids__overlap=kinds))
    if lease:
        found |= jobs.filter(pk=job.pk, state=Job.State.RUNNING)
    rows = found.annotate(asked=F("workers") * F("gpus_per_worker")).values_list(
        "pk",
        "tenant_id",
        "owner_id",
        "priority",
        "asked",
        "preemptible",
        "reason",
        "held_for",
        "owner__job_order",
    )
    return [_Waiting(*row) for row in rows]


def _in_order(cluster: Cluster, waiting: Iterable[_Waiting], lease: Lease | None) -> Sequence[_Waiting]:
    """Returns the jobs in the order in which they would be served: preemptible jobs, and jobs that a limit has made
    preemptible, come last. The job of `lease`, if it is given, is served again."""
    owed, share = _balances(cluster)
    use = _use(cluster, lease)
    quantum = cluster.effective_quantum
    queues: dict[tuple[bool, int, int], list[_Waiting]] = defaultdict(list)
    for one in waiting:
        is_last = one.is_preemptible or one.reason == Reason.PREEMPTIBLE
        queues[is_last, one.tenant, one.owner].append(one)
    ranked = []
    for (is_last, *account), jobs in queues.items():
        key = (account[0], account[1])
        weight = share.get(key) or 1.0
        served = use.get(key, 0)
        jobs.sort(key=lambda one: one.turn)
        for one in jobs:
            ahead = round((served - owed.get(key, 0.0) / quantum) / weight, 9)
            ranked.append(((is_last, key in share and not share[key], ahead, -one.gpus, one.pk), one))
            served += one.gpus
    return [one for _, one in sorted(ranked)]


def _balances(cluster: Cluster) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Returns, by team and user, the GPU-seconds that the user is owed, and the user's share in GPUs."""
    rows = ShareBalance.objects.filter(cluster=cluster).values_list("tenant", "user")
    sums = list(rows.annotate(Sum("owed"), Sum("share")).order_by())
    return {(t, u): owed for t, u, owed, _ in sums}, {(t, u): share for t, u, _, share in sums}


def _use(cluster: Cluster, lease: Lease | None) -> dict[tuple[int, int], int]:
    """Returns, by team and user, the GPUs that the user's jobs hold as a part of the user's share, without those of
    `lease`."""
    held = Lease.objects.filter(cluster=cluster, state__in=Lease.HOLDING, job__preemptible=False)
    held = held.exclude(pk=lease.pk) if lease else held
    rows = held.values_list("job__tenant", "job__owner").annotate(Sum("gpus")).order_by()
    return {(tenant, user): gpus for tenant, user, gpus in rows}
