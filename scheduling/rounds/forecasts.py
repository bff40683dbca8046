"""Forecasts the times at which waiting jobs will start, by simulating rounds from the cluster's present state."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from accounting.core.clock import now_from_database
from fairshare.forecast import first_rounds
from fairshare.model import Reason
from scheduling.core import pubsub
from scheduling.core.locks import try_lock_forecasts
from scheduling.models import Cluster, Job, JobForecast
from scheduling.shares.situations import situation_now
from scheduling.shares.snapshot import read_snapshot

# With more jobs, the simulation would take longer than a round lasts.
MOST_JOBS = 3000
MOST_ROUNDS = 40


@transaction.atomic(durable=True)
def forecast_starts(*, cluster_id: int) -> int:
    """Forecasts the time by which each waiting job of the cluster will have started, and stores the forecasts. Returns
    their number.

    Jobs that are blocked now, or that can never run, get no forecast. Returns 0 in these cases:

    - The cluster is paused or has more than MOST_JOBS unfinished jobs.
    - Another worker is writing forecasts.
    - Forecasts were already written since the last round.
    """
    if not try_lock_forecasts(cluster_id):
        return 0
    cluster = Cluster.objects.get(pk=cluster_id)
    forecasts = JobForecast.objects.filter(job__cluster=cluster)
    since = cluster.paused_at or cluster.last_round_at
    if since and forecasts.filter(at__gte=since).exists():
        return 0
    known = set(forecasts.values_list("pk", flat=True))
    found = _forecasts(cluster)
    JobForecast.objects.bulk_create(
        found,
        update_conflicts=True,
        unique_fields=["job"],
        update_fields=["at", "starts_by", "looked_until"],
    )
    told = {one.pk for one in found}
    JobForecast.objects.filter(pk__in=known - told).delete()
    pubsub.publish(*(f"job:{pk}" for pk in sorted(told - known)))
    return len(found)


def _forecasts(cluster: Cluster) -> list[JobForecast]:
    jobs = Job.objects.filter(cluster=cluster)
    if cluster.paused_at or jobs.unfinished().count() > MOST_JOBS:
        return []
    waiting = dict(jobs.waiting().values_list("pk", "reason"))
    if not waiting:
        return []
    now = now_from_database()
    snapshot, legend = read_snapshot(cluster, now=now)
    places = {
        place: pk
        for place, pk in enumerate(legend.jobs)
        if pk in waiting and not snapshot.jobs.blocked[place] and not Reason(waiting[pk]).is_never
    }
    quantum = timedelta(seconds=snapshot.settings.quantum)
    switch = timedelta(seconds=cluster.switch_seconds)
    situation = situation_now(cluster, snapshot, legend.axes)
    rounds = first_rounds(situation, places, seed=0, most=MOST_ROUNDS) if places else {}
    return [
        JobForecast(
            job_id=places[place],
            at=cluster.last_round_at or now,  # a round that runs during the simulation is not included
            starts_by=None if number is None else now + number * quantum + switch,
            looked_until=now + MOST_ROUNDS * quantum,
        )
        for place, number in sorted(rounds.items(), key=lambda one: places[one[0]])
    ]
