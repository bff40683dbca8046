"""Records the times in which gangs have their GPUs only because nobody else wants these GPUs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.bulk import array, insert_rows
from scheduling.models import Lease, PreemptibleTime


def note_preemptible(*, cluster_id: int, preemptible: Collection[int], anew: bool, now: datetime) -> None:
    """Begins and ends PreemptibleTime rows after a round.

    - `preemptible`: the ids of jobs that the round picked only because nobody else wants their GPUs. Their preemptible
      time begins or continues.
    - `anew`: whether the round was allowed to preempt jobs. If so, the preemptible time of all other jobs ends.

    Rows of stopping leases do not change. Runs in the round's transaction, after the leases are stored.
    """
    going_on = _going_on(cluster_id)
    # The open lease of each preemptible job. If a job moves, the lease that it leaves is STOPPING and left out here.
    leases = {}
    if preemptible:
        stays = Lease.objects.filter(cluster=cluster_id, job__in=preemptible, state__in=Lease.OPEN)
        stays = stays.exclude(state=Lease.State.STOPPING)
        leases = dict(stays.values_list("job_id", "pk"))
    if anew:
        # The round picked all other running jobs with a claim; leases of jobs that it did not pick are stopping.
        still = set(preemptible)
        _end([lease for lease, job in going_on.items() if job not in still], now)
    insert_rows(
        PreemptibleTime(lease_id=leases[job], during=DateTimeTZRange(now, None))
        for job in preemptible
        if job in leases and leases[job] not in going_on
    )


def _going_on(cluster_id: int) -> dict[int, int]:
    """Returns job ids, by lease id, of the cluster's open leases that are in preemptible time. Leaves out stopping
    leases."""
    open_ones = PreemptibleTime.objects.filter(
        lease__cluster=cluster_id, lease__state__in=Lease.OPEN, during__upper_inf=True
    )
    stays = open_ones.exclude(lease__state=Lease.State.STOPPING)
    return dict(stays.values_list("lease_id", "lease__job_id"))


def _end(leases: Collection[int], now: datetime) -> None:
    if not leases:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE scheduling_preemptibletime SET during = tstzrange(lower(during), %s)
             WHERE lease_id = ANY(%s::bigint[]) AND upper_inf(during) AND lower(during) < %s
            """,
            [now, array(leases), now],
        )
