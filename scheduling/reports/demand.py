"""The demand for GPUs by hour. A job demands its GPUs from its submission to its end, whether it runs or waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

import numpy as np
from django.db import connection

from accounting.core.calendar import HOUR, MICROSECOND, hours_beginning_in, start_of_hour
from accounting.core.clock import now_from_database
from accounting.core.packed import MICROSECONDS, Ints, as_number, ints, packed_ints, packed_moments
from scheduling.models import Cluster

AN_HOUR = HOUR // MICROSECOND  # an hour in microseconds, as an integer

# Reads only the index `job_ended_anywhere`, and no jobs that ended before the period. Is a UNION ALL because the
# planner uses no index for an OR of the two conditions.
THERE = f"""
    SELECT {packed_ints("gpus")}, {packed_moments("created_at")}, {packed_moments("ended_at")}
      FROM (
        SELECT workers * gpus_per_worker AS gpus, created_at, ended_at, cluster_id
          FROM scheduling_job WHERE ended_at > %(begins)s AND created_at < %(ends)s
        UNION ALL
        SELECT workers * gpus_per_worker, created_at, 'infinity', cluster_id
          FROM scheduling_job WHERE ended_at IS NULL AND created_at < %(ends)s
      ) there
     WHERE %(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s
"""  # noqa: S608 - own names


def wanted_by_hour(
    begins: datetime, ends: datetime, *, cluster: Cluster | None = None
) -> Mapping[datetime, Decimal]:
    """Returns the GPU-seconds that jobs demanded in each UTC hour, by the start of the hour.

    Includes the full hours that begin in [begins, ends) and are over.
    """
    first, last = hours_beginning_in(begins, ends)
    last = min(last, start_of_hour(now_from_database()))
    if first >= last:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(THERE, {"begins": first, "ends": last, "cluster": cluster.pk if cluster else None})
        gpus, created, ended = map(ints, cursor.fetchone())
    length = (last - first) // MICROSECOND
    since, until = (np.clip(moments - as_number(first), 0, length) for moments in (created, ended))
    # The second call subtracts the demand after the jobs' ends.
    wanted = _by_hour(gpus, since, length // AN_HOUR) - _by_hour(gpus, until, length // AN_HOUR)
    return {first + n * HOUR: Decimal(int(some)) / MICROSECONDS for n, some in enumerate(wanted)}


def _by_hour(gpus: Ints, since: Ints, hours: int) -> Ints:
    """Returns the demand of jobs in each of the first `hours` hours, in GPU-microseconds, as if no job ever ended.

    - `gpus` (J,): the number of GPUs that each job demands.
    - `since` (J,): the start of each job's demand, in microseconds after the start of the first hour.
    """
    begun, in_hour = np.zeros((2, hours + 1), dtype=np.int64)
    hour = since // AN_HOUR
    np.add.at(begun, hour, gpus)
    np.add.at(in_hour, hour, gpus * ((hour + 1) * AN_HOUR - since))
    found: Ints = (in_hour + (np.cumsum(begun) - begun) * AN_HOUR)[:hours]
    return found
