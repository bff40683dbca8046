"""Sums of share intervals. They are stored for each hour that is over, and computed on request for any other period.

A share interval says what a tenant was entitled to and what it received of one generation between two successive
rounds, in GPU-seconds (`ShareInterval`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import connection

from accounting.core.calendar import HOUR, start_of_hour
from scheduling.core.amounts import MEASURES, Amounts
from scheduling.models import Cluster, ShareBook

Key = tuple[int, int, int]  # (index of the period, tenant, generation)

_NAMES = ", ".join(MEASURES)
_PARTS = ", ".join(f"sum({name} * part)" for name in MEASURES)
_SUMS = ", ".join(f"sum({name})" for name in MEASURES)
# All names in these statements are constants. OFFSET 0 makes PostgreSQL look up each period in an index; without it,
# PostgreSQL would join all intervals of a cluster with a handful of periods.
WRITE_HOUR = f"""
    INSERT INTO scheduling_sharehour (cluster_id, tenant_id, generation_id, hour, {_NAMES})
    SELECT cluster_id, tenant_id, generation_id, %(begins)s, {_PARTS}
      FROM (SELECT *, extract(epoch FROM least(ends, %(ends)s) - greatest(begins, %(begins)s))::float8
                      / extract(epoch FROM ends - begins)::float8 AS part
              FROM scheduling_shareinterval
             WHERE cluster_id = %(cluster)s
               AND tstzrange(begins, ends) && tstzrange(%(begins)s, %(ends)s)) AS cut
     GROUP BY cluster_id, tenant_id, generation_id
"""  # noqa: S608
READ = f"""
    WITH stretch AS (
        SELECT * FROM unnest(%(numbers)s::int[], %(begins)s::timestamptz[], %(ends)s::timestamptz[])
            AS given (number, a, z)),
    span AS (
        SELECT number, cluster.id AS cluster_id, a, z,
               greatest(date_trunc('hour', a + interval '59:59.999999', 'UTC'),
                        coalesce(book.since, 'infinity')) AS first,
               least(date_trunc('hour', z, 'UTC'), coalesce(book.until, '-infinity')) AS last
          FROM stretch CROSS JOIN scheduling_cluster AS cluster
          LEFT JOIN scheduling_sharebook AS book ON book.cluster_id = cluster.id
         WHERE cluster.id = ANY(%(clusters)s)),
    piece AS (
        SELECT number, cluster_id, a, z FROM span WHERE first >= last
        UNION ALL SELECT number, cluster_id, a, first FROM span WHERE first < last AND a < first
        UNION ALL SELECT number, cluster_id, last, z FROM span WHERE first < last AND last < z),
    found AS (
        SELECT number, summed.* FROM span CROSS JOIN LATERAL (
            SELECT tenant_id, generation_id, {_NAMES} FROM scheduling_sharehour
             WHERE cluster_id = span.cluster_id AND hour >= first AND hour < last OFFSET 0) AS summed
        UNION ALL
        SELECT number, tenant_id, generation_id, {", ".join(f"{name} * part" for name in MEASURES)}
          FROM piece CROSS JOIN LATERAL (
            SELECT tenant_id, generation_id, {_NAMES},
                   extract(epoch FROM least(ends, z) - greatest(begins, a))::float8
                   / extract(epoch FROM ends - begins)::float8 AS part
              FROM scheduling_shareinterval
             WHERE cluster_id = piece.cluster_id AND tstzrange(begins, ends) && tstzrange(a, z) OFFSET 0) AS cut)
    SELECT number, tenant_id, generation_id, {_SUMS} FROM found
     WHERE %(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s)
     GROUP BY number, tenant_id, generation_id
"""  # noqa: S608


def write_hour(cluster_id: int, hour: datetime) -> None:
    """Stores the sums of share intervals for the hour that begins at `hour`. Replaces sums that were stored before.

    The caller holds the cluster's scheduling lock.
    """
    bounds: dict[str, int | datetime] = {"cluster": cluster_id, "begins": hour, "ends": hour + HOUR}
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM scheduling_sharehour WHERE cluster_id = %(cluster)s AND hour = %(begins)s", bounds
        )
        cursor.execute(WRITE_HOUR, bounds)


def write_hours_again(cluster_id: int, *, since: datetime, until: datetime) -> None:
    """Computes and stores the sums of hours in [since, until) again, because share intervals in that period have
    changed.

    Leaves out hours for which no sums are stored yet.
    """
    book = ShareBook.objects.filter(cluster=cluster_id, until__gt=since).first()
    if book is None:
        return
    hour = max(start_of_hour(since), book.since)
    while hour < min(until, book.until):
        write_hour(cluster_id, hour)
        hour += HOUR


def read_sums(
    stretches: Sequence[tuple[datetime, datetime]],
    *,
    cluster: Cluster | None = None,
    tenants: Collection[int] | None = None,
) -> dict[Key, Amounts]:
    """Returns the amounts of GPU time of each tenant and generation in each of the periods in `stretches`, in
    GPU-seconds.

    Keys are (index of the period, tenant, generation). A period is [start, end). A share interval that is only partly
    in a period counts in proportion to this part. A tenant's amounts are those of its own users, without the tenants
    below it. `cluster` None means all clusters, and `tenants` None all tenants.
    """
    clusters = [cluster.pk] if cluster else list(Cluster.objects.values_list("pk", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(
            READ,
            {
                "numbers": list(range(len(stretches))),
                "begins": [begins for begins, _ in stretches],
                "ends": [ends for _, ends in stretches],
                "clusters": clusters,
                "tenants": None if tenants is None else list(tenants),
            },
        )
        return {(n, tenant, kind): Amounts(*sums) for n, tenant, kind, *sums in cursor.fetchall()}
