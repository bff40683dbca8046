"""Says at which place of the queue a waiting job is, and which jobs are ahead of it.

The order is the one in which stride scheduling (fairshare/policies/gandiva_fair/turns.py) would serve the waiting jobs
in the next quantum if each of them fitted: the user who is furthest behind the share goes first, and each user's jobs
go by priority, then by age. A later job can still start first, because of a guarantee or because it fits, and every
round computes the order again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db.models import F, Q, Sum

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
    """The place of a waiting job: 1 is the first of `of` waiting jobs that can use one of its GPU types.

    `team_position` is the place among the `team_of` waiting jobs of its team alone. `ahead` names the first of the
    `known` jobs ahead that the reader may see; `others` is the number of the rest, and `others_gpus` what they need.
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

    @property
    def sentence(self) -> str:
        places = f"{self.position} of {counted(self.of, 'waiting job')} that can use these GPU types"
        if self.of == 1:
            return "No other waiting job can use these GPU types."
        return f"Place {places}; {self.team_position} of {self.team_of} of {self.team}."

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
    """Returns the place of `job` in the queue as `reader` may know it. Returns None if the job does not wait, or if it
    cannot start now wherever it stands in the queue."""
    if job.state not in Job.WAITING or Reason(job.reason).is_never or job.reason in BLOCKED:
        return None
    rows = _contenders(job)
    ordered = _in_order(job.cluster, rows)
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
    )


def _note(cluster: Cluster) -> str:
    if cluster.policy != DEFAULT:
        return f"{ORDER} {OTHER_POLICY.format(policy=cluster.policy)}"
    return f"{ORDER} {LOTTERY}" if cluster.ordering == Cluster.Ordering.LOTTERY else ORDER


def _contenders(job: Job) -> list[_Waiting]:
    """Returns the waiting jobs that could start on a GPU type that `job` accepts, with `job` itself."""
    never = [reason for reason in Reason if reason.is_never]
    found = Job.objects.filter(cluster=job.cluster_id).waiting().exclude(reason__in=[*never, *BLOCKED])
    if job.generation_ids:
        found = found.filter(Q(generation_ids=[]) | Q(generation_ids__overlap=job.generation_ids))
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


def _in_order(cluster: Cluster, waiting: Iterable[_Waiting]) -> Sequence[_Waiting]:
    """Returns the jobs in the order in which they would be served: preemptible jobs, and jobs that a limit has made
    preemptible, come last."""
    owed, share = _balances(cluster)
    use = _use(cluster)
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


def _use(cluster: Cluster) -> dict[tuple[int, int], int]:
    """Returns, by team and user, the GPUs that the user's jobs hold as a part of the user's share."""
    held = Lease.objects.filter(cluster=cluster, state__in=Lease.HOLDING, job__preemptible=False)
    rows = held.values_list("job__tenant", "job__owner").annotate(Sum("gpus")).order_by()
    return {(tenant, user): gpus for tenant, user, gpus in rows}
