"""Writes down from when to when gangs have their GPUs only because nobody else wants them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.core.bulk import array, insert_rows
from scheduling.models import Lease, PreemptibleTime


def note_preemptible(*, cluster_id: int, preemptible: Collection[int], anew: bool, now: datetime) -> None:
    """After a round that picked these jobs only as nobody else wants the GPUs.

    Inside the round's transaction, when its leases are stored. A round that is not `anew` leaves what runs as it is,
    and says nothing of it but of what it starts. A lease that is being stopped stays what it was.
    """
    going_on = _going_on(cluster_id)
    # By job the lease that the round gave it or left it; what it leaves elsewhere is stopping.
    leases = {}
    if preemptible:
        stays = Lease.objects.filter(cluster=cluster_id, job__in=preemptible, state__in=Lease.OPEN)
        stays = stays.exclude(state=Lease.State.STOPPING)
        leases = dict(stays.values_list("job_id", "pk"))
    if anew:
        # All others were picked with a claim: of who was not picked the lease is stopping by now.
        still = set(preemptible)
        _end([lease for lease, job in going_on.items() if job not in still], now)
    insert_rows(
        PreemptibleTime(lease_id=leases[job], during=DateTimeTZRange(now, None))
        for job in preemptible
        if job in leases and leases[job] not in going_on
    )


def _going_on(cluster_id: int) -> dict[int, int]:
    """Of the cluster's open leases those that are preemptible now, with their jobs."""
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
