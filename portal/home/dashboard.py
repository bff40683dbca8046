"""The figures of the home page: the user's jobs, the current use of the teams' shares, and the current use of the
GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from django.db.models import Q, Sum

from accounting.core.name_order import by_name
from accounting.core.prepared import Prepared
from accounting.models import Tenant
from scheduling.models import Cluster, Job, Lease, Node, Round
from scheduling.reports.holders import UNHELD


@dataclass(frozen=True)
class Counts:
    running: int
    gpus: int  # held by running jobs
    waiting: int
    succeeded: int
    failed: int
    all: int


@dataclass(frozen=True)
class ShareNow:
    """The GPUs of one generation: how many exist, how many the user's teams are entitled to, and how many those teams
    hold."""

    generation: str
    size: int
    entitled: float
    held: int


@dataclass(frozen=True)
class Machines:
    generation: str
    total: int
    busy: int
    drained: int  # GPUs that no job holds on drained nodes
    away: int  # GPUs that no job holds on nodes that are neither ready nor drained

    @property
    def free(self) -> int:
        return max(0, self.total - self.busy - self.drained - self.away)


@dataclass(frozen=True)
class GpuTotals:
    """The numbers of GPUs that exist, by generation, and of GPUs that jobs hold now, by generation, tenant and
    owner."""

    held: list[tuple[int, int, int, int]]  # generation, tenant, owner, GPUs
    # Key and name of the generation, GPUs, and GPUs that no job holds on drained nodes and on nodes that are away.
    nodes: list[tuple[int, str, int, int, int]]

    @classmethod
    def read(cls) -> Self:
        """Reads the nodes of all attached clusters, and all leases that hold GPUs."""
        return cls(held=_held(), nodes=_nodes())

    def held_by(self, owner: int | None, tenants: Container[int] | None = None) -> dict[int, int]:
        """Returns the number of GPUs that jobs of `owner` in `tenants` hold, by generation id.

        `owner` None means all owners, and `tenants` None means all tenants.
        """
        found: dict[int, int] = defaultdict(int)
        for generation, tenant, holder, gpus in self.held:
            if (owner is None or holder == owner) and (tenants is None or tenant in tenants):
                found[generation] += gpus
        return found


# The query is the same for all readers, so its values are literals and it takes no parameters.
_held = Prepared(
    lambda: (
        Lease.objects.filter(state__in=Lease.HOLDING)
        .order_by()
        .values_list("generation", "job__tenant", "job__owner")
        .annotate(gpus=Sum("gpus"))
    )
)
_nodes = Prepared(
    lambda: (
        Node.objects.filter(cluster__detached_at=None)
        .present()
        .order_by(*by_name("generation__name"))
        .values_list("generation", "generation__name")
        .annotate(
            total=Sum("gpus"),
            drained=Sum(UNHELD, filter=Q(state=Node.State.DRAINED), default=0),
            away=Sum(UNHELD, filter=~Q(state__in=[Node.State.READY, Node.State.DRAINED]), default=0),
        )
    )
)


def counts(states: Iterable[tuple[str, int]], held: Mapping[int, int]) -> Counts:
    """Returns the number of GPUs that jobs hold, and the numbers of running, waiting, succeeded, failed and all jobs.

    `states` has a pair (state, number of jobs) for each state, including the states of ended jobs. `held` maps the id
    of each generation to the number of held GPUs.
    """
    found: Mapping[str, int] = defaultdict(int, states)
    return Counts(
        gpus=sum(held.values()),
        running=sum(found[state] for state in Job.HOLDING),
        waiting=sum(found[state] for state in Job.WAITING),
        succeeded=found[Job.State.SUCCEEDED],
        failed=found[Job.State.FAILED],
        all=sum(found.values()),
    )


own_teams = Prepared(
    lambda user: Tenant.objects.active().filter(memberships__user=user).order_by(*by_name("name"))
)
_shares = Prepared(lambda cluster: Round.objects.filter(cluster=cluster).values_list("shares")[:1])


def share_now(teams: Container[int], gpu_totals: GpuTotals, clusters: Iterable[Cluster]) -> list[ShareNow]:
    """Returns for each generation how many GPUs exist, how many GPUs `teams` together are entitled to, and how many
    they hold.

    The entitlements are those of the last round of each cluster.
    """
    entitled: dict[int, float] = defaultdict(float)
    for cluster in clusters:
        for rate in next((shares for (shares,) in _shares(cluster.pk)), []):
            if rate["tenant"] in teams:
                entitled[rate["generation"]] += rate["entitled"]
    held = gpu_totals.held_by(None, teams)
    return [ShareNow(name, total, entitled[pk], held.get(pk, 0)) for pk, name, total, *_ in gpu_totals.nodes]


def machines_now(gpu_totals: GpuTotals) -> list[Machines]:
    """Returns how the GPUs of each generation are used now, in all attached clusters together."""
    busy = gpu_totals.held_by(None)
    return [Machines(name, total, busy.get(pk, 0), *away) for pk, name, total, *away in gpu_totals.nodes]
