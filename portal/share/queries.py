"""What tenants were entitled to and got, summed by PostgreSQL into a fixed number of points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.db import connection
from django.db.models import Sum

from accounting.models import Generation, Tenant, User
from portal.share.periods import Period
from scheduling.amounts import MEASURES, Amounts
from scheduling.models import Cluster, ShareBalance, ShareInterval

# Of what goes both ways within a round only the difference crosses the tenant's border.
NET = {
    "lent": "greatest(sum(lent) - sum(borrowed), 0)",
    "borrowed": "greatest(sum(borrowed) - sum(lent), 0)",
    "sold": "greatest(sum(sold) - sum(bought), 0)",
    "bought": "greatest(sum(bought) - sum(sold), 0)",
}
POINTS = 60


@dataclass(frozen=True)
class Series:
    """One generation's amounts in `POINTS` equal stretches of a period, oldest first."""

    generation: Generation
    points: list[Amounts]
    owed: float  # GPU-seconds, as of the last round

    @cached_property
    def total(self) -> Amounts:
        return sum(self.points, Amounts())


def read_share(user: User, tenant: Tenant, period: Period, cluster: Cluster) -> list[Series]:
    """The share of `tenant` and all tenants below it, as far as `user` may see, per generation of `cluster`.

    What the tenants below it lend and sell each other in a round is no loan or sale of `tenant`, hence left
    out. Each cluster is shared on its own, so amounts of several are never summed. An interval that crosses the
    border of two points counts for each by its overlap.
    """
    sums = dict(_sums(user, tenant, period, cluster))
    owed = {
        row["generation"]: row["owed"]
        for row in ShareBalance.objects.filter(
            cluster=cluster, tenant__in=Tenant.objects.within(tenant) & Tenant.objects.visible_to(user)
        )
        .values("generation")
        .annotate(owed=Sum("owed"))
    }
    shown = {generation for generation, _ in sums} | set(owed)
    return [
        Series(
            generation,
            [sums.get((generation.pk, point), Amounts()) for point in range(POINTS)],
            owed.get(generation.pk, 0.0),
        )
        for generation in Generation.objects.filter(pk__in=shown)
    ]


def point_times(period: Period) -> list[datetime]:
    """When each point begins."""
    step = timedelta(seconds=period.seconds / POINTS)
    return [period.begins + step * point for point in range(POINTS)]


def _sums(
    user: User, tenant: Tenant, period: Period, cluster: Cluster
) -> Iterator[tuple[tuple[int, int], Amounts]]:
    visible, params = (
        ShareInterval.objects.visible_to(user)
        .filter(
            cluster=cluster,
            tenant__in=Tenant.objects.within(tenant),
            begins__lt=period.ends,
            ends__gt=period.begins,
        )
        .order_by()
        .values("round_id", "generation_id", "begins", "ends", *MEASURES)
        .query.sql_with_params()
    )
    parts = ", ".join(f"sum({name} * part) AS {name}" for name in MEASURES)
    net = ", ".join(f"{NET.get(name, 'sum({})').format(name)} AS {name}" for name in MEASURES)
    # The column names and the inner query come from Django and from MEASURES alone.
    sql = f"""
        WITH visible AS ({visible}),
        netted AS (
            SELECT generation_id, begins, ends, {net} FROM visible
            GROUP BY round_id, generation_id, begins, ends
        ),
        points AS (
            SELECT point, %s::timestamptz + point * %s::interval AS a,
                   %s::timestamptz + (point + 1) * %s::interval AS b
            FROM generate_series(0, {POINTS - 1}) AS point
        ),
        parts AS (
            SELECT netted.*, point,
                   extract(epoch FROM least(ends, b) - greatest(begins, a))::float8
                   / nullif(extract(epoch FROM ends - begins)::float8, 0) AS part
            FROM netted JOIN points ON begins < b AND ends > a
        )
        SELECT generation_id, point, {parts} FROM parts GROUP BY generation_id, point
    """  # noqa: S608
    step = timedelta(seconds=period.seconds / POINTS)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*params, period.begins, step, period.begins, step])
        for generation, point, *sums in cursor.fetchall():
            yield (generation, point), Amounts(*(float(value or 0.0) for value in sums))
