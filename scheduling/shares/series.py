"""Time series of the GPU time that tenants were entitled to and received. PostgreSQL sums them into POINTS points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter

from django.db.models import OuterRef, Subquery, Sum

from accounting.core.prepared import Prepared
from accounting.core.statements import Statement
from accounting.models import Generation, Tenant, User
from scheduling.core.amounts import MEASURES, Amounts
from scheduling.models import Cluster, ShareBalance

# Loans and trades between teams of the same subtree cancel out within a round; only the difference leaves the subtree.
NET = {
    "lent": "greatest(sum(lent) - sum(borrowed), 0)",
    "borrowed": "greatest(sum(borrowed) - sum(lent), 0)",
    "sold": "greatest(sum(sold) - sum(bought), 0)",
    "bought": "greatest(sum(bought) - sum(sold), 0)",
}
POINTS = 60
# Shares are saved when a round ends. If the last known round ended within this time, no round is missing.
SETTLED_WITHIN = timedelta(minutes=15)
NOTHING = Amounts()
_measures = attrgetter(*MEASURES)


@dataclass(frozen=True)
class Series:
    """The amounts of GPU time on one generation in each of `POINTS` equal parts of a period, oldest first.

    Amounts (scheduling.core.amounts) lists the amounts: entitled, received, lent and four more.
    """

    generation: Generation
    points: list[Amounts]
    owed: float  # GPU-seconds that the tenants are owed as of the last round

    @cached_property
    def total(self) -> Amounts:
        return Amounts(*map(sum, zip(*map(_measures, self.points), strict=True)))


def read_share(
    user: User, tenant: Tenant, cluster: Cluster, begins: datetime, ends: datetime
) -> list[Series]:
    """Returns a series for each generation of `cluster`, for `tenant` and those tenants below it that `user` may
    see."""
    seen = Tenant.objects.visible_to(user).within(tenant)
    return share_of(list(seen.order_by().values_list("pk", flat=True)), cluster, begins, ends)


def share_of(teams: list[int], cluster: Cluster, begins: datetime, ends: datetime) -> list[Series]:
    """Returns a series for each generation of `cluster`, for all tenants in `teams` together.

    `teams` are the ids of a tenant and of the tenants below it that the reader may see. Loans and trades among `teams`
    in the same round cancel out. A share interval that overlaps several parts of the period counts for each of them in
    proportion to the overlap. Leaves out generations without shares.
    """
    if not teams:
        return []
    sums = dict(_sums(teams, cluster, begins, ends))
    shared = {generation for generation, _ in sums}
    return [
        Series(
            generation,
            [sums.get((generation.pk, point), NOTHING) for point in range(POINTS)],
            generation.owed or 0.0,
        )
        for generation in _generations(cluster.pk, teams)
        if generation.owed is not None or generation.pk in shared
    ]


_owed = (
    ShareBalance.objects.filter(generation=OuterRef("pk"))
    .order_by()
    .values("generation")
    .annotate(owed=Sum("owed"))
)
_generations = Prepared(
    lambda cluster, teams: Generation.objects.annotate(
        owed=Subquery(_owed.filter(cluster=cluster, tenant__in=teams).values("owed"))
    )
)


def point_times(begins: datetime, ends: datetime) -> list[datetime]:
    """Returns the start of each of the POINTS parts of a period."""
    step = (ends - begins) / POINTS
    return [begins + step * point for point in range(POINTS)]


def _sums(
    teams: list[int], cluster: Cluster, begins: datetime, ends: datetime
) -> Iterator[tuple[tuple[int, int], Amounts]]:
    step = (ends - begins) / POINTS
    for generation, point, *sums in _summed.ask([cluster.pk, teams, begins, ends, step]):
        yield (generation, point), Amounts(*(value or 0.0 for value in sums))


# The columns are named as in MEASURES.
_summed = Statement(
    f"""
    WITH netted AS (
        SELECT generation_id, begins, ends,
               {", ".join(f"{NET.get(name, 'sum({})').format(name)} AS {name}" for name in MEASURES)}
          FROM scheduling_shareinterval
         WHERE cluster_id = $1 AND tenant_id = ANY($2) AND begins < $4 AND ends > $3
         GROUP BY round_id, generation_id, begins, ends
    ),
    points AS (
        SELECT point, $3 + point * $5 AS a, $3 + (point + 1) * $5 AS b
          FROM generate_series(0, {POINTS - 1}) AS point
    ),
    parts AS (
        SELECT netted.*, point,
               extract(epoch FROM least(ends, b) - greatest(begins, a))::float8
               / nullif(extract(epoch FROM ends - begins)::float8, 0) AS part
          FROM netted JOIN points ON begins < b AND ends > a
    )
    SELECT generation_id, point, {", ".join(f"sum({name} * part)" for name in MEASURES)}
      FROM parts GROUP BY generation_id, point
    """,  # noqa: S608
    "bigint",
    "bigint[]",
    "timestamptz",
    "timestamptz",
    "interval",
)


def is_young(teams: list[int]) -> bool:
    """Returns whether `teams` have share intervals and the first of these began within the last hour."""
    [(found,)] = _young.ask([teams])
    return bool(found)


_young = Statement(
    """
    SELECT EXISTS (SELECT FROM scheduling_shareinterval WHERE tenant_id = ANY($1))
           AND NOT EXISTS (SELECT FROM scheduling_shareinterval
                            WHERE tenant_id = ANY($1) AND begins < statement_timestamp() - interval '1 hour')
    """,
    "bigint[]",
)


def last_round(teams: list[int], cluster: Cluster) -> tuple[datetime, datetime | None]:
    """Returns a pair: the present time, and the end of the latest share interval of `teams` on the cluster.

    A share interval is the time from one round to the next. The second element is None if no interval ended in the last
    SETTLED_WITHIN (15 minutes).
    """
    [(now, ends)] = _last_round.ask([cluster.pk, teams, SETTLED_WITHIN])
    return now, ends


_last_round = Statement(
    """
    SELECT clock_timestamp(), max(ends) FROM scheduling_shareinterval
     WHERE cluster_id = $1 AND tenant_id = ANY($2) AND ends > statement_timestamp() - $3
    """,
    "bigint",
    "bigint[]",
    "interval",
)
