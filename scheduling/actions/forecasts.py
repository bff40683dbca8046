"""When waiting jobs are expected to start: rounds played ahead from where the cluster stands."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from accounting.clock import now_from_database
from fairshare.forecast import first_rounds
from fairshare.model import Reason
from scheduling import live
from scheduling.models import Cluster, Job, JobForecast
from scheduling.snapshot import read_snapshot

# On a larger queue this would take longer than a round lasts.
MOST_JOBS = 3000
MOST_ROUNDS = 40


@transaction.atomic(durable=True)
def forecast_starts(*, cluster_id: int) -> int:
    """Writes when each job that waits in the cluster starts at the latest; returns of how many it is told.

    Nothing is told of jobs that can never run, nor of any while the cluster is paused or has too many jobs.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    # One writer at a time: who comes second knows more.
    known = set(
        JobForecast.objects.select_for_update(of=("self",))
        .filter(job__cluster=cluster)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    found = _forecasts(cluster)
    JobForecast.objects.bulk_create(
        found,
        update_conflicts=True,
        unique_fields=["job"],
        update_fields=["at", "starts_by", "looked_until"],
    )
    told = {one.pk for one in found}
    JobForecast.objects.filter(pk__in=known - told).delete()
    live.publish(*(f"job:{pk}" for pk in sorted(told - known)))
    return len(found)


def _forecasts(cluster: Cluster) -> list[JobForecast]:
    """In the order of the jobs' keys, in which any two writers lock them."""
    waiting = dict(Job.objects.filter(cluster=cluster).waiting().values_list("pk", "reason"))
    if not waiting or cluster.paused_at:
        return []
    now = now_from_database()
    snapshot, legend = read_snapshot(cluster, now=now, may_preempt=True)
    if len(snapshot.jobs) > MOST_JOBS:
        return []
    places = {
        place: pk
        for place, pk in enumerate(legend.jobs)
        if pk in waiting and not Reason(waiting[pk]).is_never
    }
    quantum = timedelta(seconds=snapshot.settings.quantum)
    switch = timedelta(seconds=cluster.switch_seconds)
    rounds = first_rounds(snapshot, places, seed=0, most=MOST_ROUNDS) if places else {}
    return [
        JobForecast(
            job_id=places[place],
            at=now,
            starts_by=None if number is None else now + number * quantum + switch,
            looked_until=now + MOST_ROUNDS * quantum,
        )
        for place, number in sorted(rounds.items(), key=lambda one: places[one[0]])
    ]
