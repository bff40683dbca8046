"""How many GPUs jobs wanted, hour by hour: from submit to end, whether they had them or waited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from django.db import connection

from accounting.clock import now_from_database
from accounting.sums import HOUR, start_of_hour
from accounting.tariff import MICROSECOND
from scheduling.models import Cluster

# Each job adds its GPUs when it comes and takes them away when it ends; within an hour from that moment on, in all
# later hours as a whole. Index only on `job_ended_anywhere`: what ended before the period does not matter. In two
# parts, as the planner reads no index for an OR of them.
WANTED = """
    WITH there AS (
        SELECT workers * gpus_per_worker AS gpus, created_at, ended_at, cluster_id
          FROM scheduling_job WHERE ended_at > %(begins)s AND created_at < %(ends)s
        UNION ALL
        SELECT workers * gpus_per_worker, created_at, NULL, cluster_id
          FROM scheduling_job WHERE ended_at IS NULL AND created_at < %(ends)s
    ), steps AS (
        SELECT at, step.gpus
          FROM there CROSS JOIN LATERAL (VALUES
               (greatest(created_at, %(begins)s), there.gpus),
               (least(coalesce(ended_at, %(ends)s), %(ends)s), -there.gpus)) AS step (at, gpus)
         WHERE (%(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s)
    ), hours AS (
        SELECT date_bin('1 hour', at, %(begins)s) AS hour, sum(gpus) AS more,
               sum(gpus * extract(epoch FROM date_bin('1 hour', at, %(begins)s) + interval '1 hour' - at)) AS in_hour
          FROM steps GROUP BY 1
    )
    SELECT hour, coalesce(in_hour, 0) + 3600 * (coalesce(sum(more) OVER (ORDER BY hour), 0) - coalesce(more, 0))
      FROM generate_series(%(begins)s::timestamptz, %(ends)s::timestamptz - interval '1 hour', interval '1 hour')
           AS hour LEFT JOIN hours USING (hour)
     ORDER BY hour
"""


def wanted_by_hour(
    begins: datetime, ends: datetime, *, cluster: Cluster | None = None
) -> Mapping[datetime, Decimal]:
    """GPU-seconds wanted in each full UTC hour that begins in [begins, ends) and is over. Two queries."""
    # In UTC: on clocks of half hours the last hour reaches beyond the period, and no moment comes twice.
    begins, ends = begins.astimezone(UTC), ends.astimezone(UTC)
    first = start_of_hour(begins - MICROSECOND) + HOUR
    last = min(start_of_hour(ends - MICROSECOND) + HOUR, start_of_hour(now_from_database()))
    if first >= last:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(WANTED, {"begins": first, "ends": last, "cluster": cluster.pk if cluster else None})
        return dict(cursor.fetchall())
