"""Who holds GPUs now, by team, user and GPU type, and to how many GPUs each team is entitled.

The database sums the leases, so that the rows are as many as the pairs of teams and users, not as the leases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, Sum, When
from django.db.models.functions import Coalesce, Now

from accounting.access.visibility import tenants_seen
from accounting.core.name_order import by_name, name_key
from accounting.models import Tenant, User
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, Round


@dataclass(frozen=True, slots=True)
class Narrow:
    """Represents a choice of GPUs.

    - `cluster`, `generation`: names; empty for all.
    - `node`: a part of the names of nodes; empty for all nodes.
    - `tenants`: the ids of the teams whose GPUs are read; None for all teams.
    """

    cluster: str = ""
    generation: str = ""
    node: str = ""
    tenants: Collection[int] | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """Represents the GPUs of one type that a user's jobs in one team hold now.

    `idle` is the number of those GPUs that were idle at the last measurement. The fields of the team and of the user
    are None for the GPUs of all teams that the reader may not see, which are one row for each GPU type.
    """

    generation: str
    tenant_id: int | None
    tenant: str | None
    slug: str | None
    user: str | None
    gpus: int
    jobs: int
    idle: int


@dataclass(slots=True)
class Held:
    """Represents held GPUs of one type. `jobs` hold them, and `idle` of them are idle.

    `entitled` is the number of GPUs to which the team is entitled; None where it is unknown.
    """

    gpus: int = 0
    jobs: int = 0
    idle: int = 0
    entitled: float | None = None


@dataclass(slots=True)
class Holder:
    """Represents a team, or a user in a team, with the GPUs that its jobs hold. The teams below the team are
    separate rows.

    `user` is None for a team. `tenant_id` is None for all teams that the reader may not see; then `jobs` and `idle` are
    0, because they are not shown.
    """

    tenant_id: int | None
    tenant: str | None
    slug: str | None
    user: str | None = None
    by_generation: dict[str, Held] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return sum(held.gpus for held in self.by_generation.values())

    @property
    def jobs(self) -> int:
        return sum(held.jobs for held in self.by_generation.values())

    @property
    def idle(self) -> int:
        return sum(held.idle for held in self.by_generation.values())


@dataclass(frozen=True, slots=True)
class Size:
    """Represents the GPUs of one type on nodes that are present: all of them, and those of ready nodes that no job
    holds."""

    generation_id: int
    generation: str
    gpus: int
    free: int


@dataclass(frozen=True, slots=True)
class WhoHolds:
    """Represents all holders of the chosen GPUs, most GPUs first, and the number of GPUs of each type."""

    holders: list[Holder]
    sizes: list[Size]

    @property
    def totals(self) -> dict[str, int]:
        """Returns the number of GPUs by GPU type, at least as many as are held: a node may leave while a job holds its
        GPUs."""
        found = {size.generation: size.gpus for size in self.sizes}
        held: Counter[str] = Counter()
        for one in self.holders:
            held.update({name: gpus.gpus for name, gpus in one.by_generation.items()})
        return {name: max(found.get(name, 0), held[name]) for name in found.keys() | held.keys()}


def who_holds(
    viewer: User, narrow: Narrow, *, teams: Iterable[Tenant], by_user: bool, measured_within: timedelta
) -> WhoHolds:
    """Returns who holds the chosen GPUs now, by team or by user, as far as `viewer` may see it.

    All teams that `viewer` may not see are one holder, the last one. By team, the rows have the entitlement of the
    team, and include teams that are entitled to GPUs but hold none. With a choice of nodes, no row has an entitlement,
    because an entitlement is not to certain nodes. GPUs count as idle if the last measurement, at most
    `measured_within` ago, found them idle. `teams`: the teams that `viewer` may see.
    """
    seen = tenants_seen(viewer)
    holdings = read_holdings(seen, narrow, measured_within=measured_within)
    sizes = read_sizes(narrow)
    found = _holders(holdings, by_user=by_user)
    if not (by_user or narrow.node):
        allowed = None if narrow.tenants is None else set(narrow.tenants)
        wanted = {one.pk: one for one in teams if allowed is None or one.pk in allowed}
        _add_entitled(found, wanted, sizes, narrow)
    place = {size.generation: number for number, size in enumerate(sizes)}
    for one in found.values():
        one.by_generation = dict(
            sorted(one.by_generation.items(), key=lambda item: place.get(item[0], len(place)))
        )
    return WhoHolds(sorted(found.values(), key=_most_first), sizes)


def top_holders(viewer: User, narrow: Narrow, *, by_user: bool, measured_within: timedelta) -> list[Holder]:
    """Returns the holders of `who_holds`, without entitlements, from one query besides that of the viewer's teams."""
    holdings = read_holdings(tenants_seen(viewer), narrow, measured_within=measured_within)
    return sorted(_holders(holdings, by_user=by_user).values(), key=_most_first)


def _holders(holdings: Iterable[Holding], *, by_user: bool) -> dict[tuple[int | None, str | None], Holder]:
    found: dict[tuple[int | None, str | None], Holder] = {}
    for one in holdings:
        user = one.user if by_user else None
        holder = found.setdefault((one.tenant_id, user), Holder(one.tenant_id, one.tenant, one.slug, user))
        held = holder.by_generation.setdefault(one.generation, Held())
        held.gpus += one.gpus
        held.jobs += one.jobs
        held.idle += one.idle
    return found


def _add_entitled(
    found: dict[tuple[int | None, str | None], Holder],
    tenants: dict[int, Tenant],
    sizes: Iterable[Size],
    narrow: Narrow,
) -> None:
    names = {size.generation_id: size.generation for size in sizes}
    for (tenant, generation), gpus in read_entitled(narrow.cluster).items():
        if tenant not in tenants or generation not in names or gpus <= 0:
            continue
        team = tenants[tenant]
        holder = found.setdefault((tenant, None), Holder(tenant, team.name, team.slug))
        holder.by_generation.setdefault(names[generation], Held()).entitled = gpus


def _most_first(one: Holder) -> tuple[object, ...]:
    return one.tenant_id is None, -one.gpus, name_key(one.tenant or ""), name_key(one.user or "")


def read_entitled(cluster: str = "") -> dict[tuple[int, int], float]:
    """Returns the number of GPUs to which each team's own users are entitled, by (tenant id, generation id).

    The numbers are those of the last round of each attached cluster, added up. `cluster`: the name of the only cluster
    to read.
    """
    clusters = Cluster.objects.attached()
    last = Round.objects.filter(cluster=OuterRef("pk")).order_by("-number").values("shares")[:1]
    chosen = clusters.filter(name=cluster) if cluster else clusters
    entitled: dict[tuple[int, int], float] = defaultdict(float)
    for shares in chosen.order_by().annotate(last=Subquery(last)).values_list("last", flat=True):
        for rate in shares or ():
            entitled[rate["tenant"], rate["generation"]] += rate["entitled"]
    return entitled


def read_sizes(narrow: Narrow) -> list[Size]:
    """Returns the number of the chosen GPUs by type, in the order of their names. The choice of teams has no effect."""
    nodes = Node.objects.filter(cluster__detached_at=None).present()
    chosen = {
        "cluster__name": narrow.cluster,
        "generation__name": narrow.generation,
        "name__icontains": narrow.node,
    }
    rows = (
        nodes.filter(**{name: value for name, value in chosen.items() if value})
        .order_by(*by_name("generation__name"))
        .values_list("generation", "generation__name")
        .annotate(all_gpus=Sum("gpus"), free=Coalesce(Sum(UNHELD, filter=Q(state=Node.State.READY)), 0))
    )
    return [Size(pk, name, gpus, max(0, free)) for pk, name, gpus, free in rows]


# The number of a node's GPUs that no job holds.
UNHELD = F("gpus") - Coalesce(
    Subquery(
        HeldGpu.objects.filter(node=OuterRef("pk"), during__isnull=False, during__endswith__isnull=True)
        .order_by()
        .values("node")
        .annotate(count=Count("*"))
        .values("count")
    ),
    0,
)


def read_holdings(
    seen: Collection[int] | None, narrow: Narrow, *, measured_within: timedelta
) -> list[Holding]:
    """Returns the GPUs that jobs hold now, from one query.

    `seen`: the ids of the teams that the reader may see; None for all teams. The GPUs of all other teams are summed
    into one row for each GPU type, without their number of jobs and idle GPUs. GPUs count as idle if the last
    measurement, at most `measured_within` ago, found them idle.
    """
    of_lease, rows = "", _held(narrow)
    gpus: Any = Sum("gpus")
    if narrow.node:
        of_lease, gpus = "lease__", Count("pk")
    idle = _idle(of_lease, measured_within)
    named = {
        "by_tenant_id": "job__tenant",
        "by_tenant": "job__tenant__name",
        "by_slug": "job__tenant__slug",
        "by_user": "job__owner__username",
    }
    columns = {
        name: _if_seen(f"{of_lease}{path}", f"{of_lease}job__tenant", seen) for name, path in named.items()
    }
    counted = (
        rows.order_by()
        .values(by_generation=F(f"{of_lease}generation__name"), **columns)
        .annotate(
            all_gpus=gpus,
            all_jobs=Count("lease" if narrow.node else "pk", distinct=bool(narrow.node)),
            all_idle=Count("pk", filter=idle) if narrow.node else Coalesce(Sum("gpus", filter=idle), 0),
        )
    )
    shown = counted.values_list("by_generation", *named, "all_gpus", "all_jobs", "all_idle")
    return [
        Holding(generation, tenant, name, slug, user, gpus, *((jobs, idle) if tenant else (0, 0)))
        for generation, tenant, name, slug, user, gpus, jobs, idle in shown
    ]


def _held(narrow: Narrow) -> QuerySet[Any]:
    """Returns the leases that hold GPUs or, if nodes are chosen, the held GPUs of these nodes."""
    chosen: dict[str, Any] = {}
    if narrow.cluster:
        chosen["cluster__name"] = narrow.cluster
    if narrow.generation:
        chosen["generation__name"] = narrow.generation
    if narrow.tenants is not None:
        chosen["job__tenant__in"] = list(narrow.tenants)
    if not narrow.node:
        return Lease.objects.filter(state__in=Lease.HOLDING, **chosen)
    of_lease = {f"lease__{name}": value for name, value in chosen.items()}
    now = {"during__isnull": False, "during__endswith__isnull": True}
    return HeldGpu.objects.filter(node__name__icontains=narrow.node, **now, **of_lease)


def _idle(of_lease: str, measured_within: timedelta) -> Q:
    """Returns the condition of `GpuUse.idle` for leases; `of_lease` is the path to the lease, such as "lease__"."""
    lease = F(f"{of_lease}pk") if of_lease else F("pk")
    condition = {
        "state": Lease.State.RUNNING,
        "job__state": Job.State.RUNNING,
        "job__gpu_use__idle_since__isnull": False,
        "job__gpu_use__measured_until__gte": Now() - measured_within,
        "job__gpu_use__lease": lease,
    }
    return Q(**{f"{of_lease}{name}": value for name, value in condition.items()})


def _if_seen(path: str, tenant: str, seen: Collection[int] | None) -> Any:
    """Returns the expression of a column that is null for teams that are not in `seen`."""
    if seen is None:
        return F(path)
    return Case(When(**{f"{tenant}__in": list(seen)}, then=F(path)), default=None)
