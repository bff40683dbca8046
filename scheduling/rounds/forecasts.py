"""Forecasts the times at which waiting jobs will start, by simulating rounds from the cluster's present state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from zlib import crc32

import numpy as np
from django.db import transaction
from django.db.models import F

from accounting.core.clock import now_from_database
from fairshare.driver import Situation
from fairshare.model import Floats, Ints, Reason
from fairshare.starts.calibration import Expected, expected_of, intervals
from fairshare.starts.run_times import SHORTEST, PastRunTimes
from fairshare.starts.scenarios import sample_starts
from scheduling.core import pubsub
from scheduling.core.locks import try_lock_forecasts
from scheduling.models import Cluster, Job, JobForecast, KeptForecast
from scheduling.rounds import outcomes
from scheduling.rounds.rollouts import replaced_replicas
from scheduling.shares.situations import situation_now
from scheduling.shares.snapshot import read_snapshot

# With more jobs, the simulation would take longer than a round lasts.
MOST_JOBS = 3000
# Futures that are simulated: this many, but fewer if all of them together have more than MOST_SIMULATED jobs.
MOST_SCENARIOS, MOST_SIMULATED = 3, 1500
# A start that is expected after this time is shown without a latest time.
HORIZON = timedelta(days=14)
# Latest ended jobs from which run times are estimated.
MOST_PAST = 2000


@transaction.atomic(durable=True)
def forecast_starts(*, cluster_id: int) -> int:
    """Forecasts between which times each waiting job of the cluster will start, and stores the forecasts. Returns
    their number.

    Before that, learns from earlier forecasts whose outcome has become known. Jobs that are blocked now, or that can
    never run, get no forecast. Returns 0 in these cases:

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
    kept = outcomes.learn(cluster)
    found = _forecasts(cluster, kept)
    JobForecast.objects.bulk_create(
        found,
        update_conflicts=True,
        unique_fields=["job"],
        update_fields=["at", "earliest", "starts_by"],
    )
    told = {one.pk for one in found}
    JobForecast.objects.filter(pk__in=known - told).delete()
    pubsub.publish(*(f"job:{pk}" for pk in sorted(told - known)))
    return len(found)


def _forecasts(cluster: Cluster, kept: outcomes.Kept) -> list[JobForecast]:
    jobs = Job.objects.filter(cluster=cluster)
    if cluster.paused_at or jobs.unfinished().count() > MOST_JOBS:
        return []
    waiting = {
        pk: (reason, first)
        for pk, reason, first in jobs.waiting().values_list("pk", "reason", "first_started_at")
    }
    if not waiting:
        return []
    now = now_from_database()
    snapshot, legend = read_snapshot(cluster, now=now)
    places = [
        place
        for place, pk in enumerate(legend.jobs)
        if pk in waiting and not snapshot.jobs.blocked[place] and not Reason(waiting[pk][0]).is_never
    ]
    if not places:
        return []
    situation = situation_now(cluster, snapshot, legend.axes)
    expected = expected_waits(cluster, situation, legend.jobs, places)
    quantum, horizon = snapshot.settings.quantum, HORIZON.total_seconds()
    ages = [kept.age(legend.jobs[place], now) for place in places]
    seconds = np.array([age.total_seconds() for age in ages])
    sides = intervals(expected, seconds, kept.outcomes, quantum=quantum)
    found, firsts = [], []
    for place, age, wait, earliest, latest in zip(
        places, ages, expected.wait.tolist(), *(side.tolist() for side in sides), strict=True
    ):
        pk = legend.jobs[place]
        starts = now + timedelta(seconds=min(earliest, horizon))
        forecast = JobForecast(
            job_id=pk,
            at=cluster.last_round_at or now,  # a round that runs during the simulation is not included
            earliest=starts,
            starts_by=now + timedelta(seconds=latest) if latest <= horizon else None,
        )
        found.append(forecast)
        if waiting[pk][1] is None:
            by = now + timedelta(seconds=min(latest, outcomes.LONGEST))
            firsts.append(
                KeptForecast(
                    cluster=cluster,
                    job_id=pk,
                    is_first=pk not in kept.latest,
                    at=now,
                    age=age,
                    expected=now + timedelta(seconds=wait),
                    earliest=min(starts, by),
                    latest=by,
                )
            )
    outcomes.keep(cluster, kept, firsts, quantum=quantum)
    return sorted(found, key=lambda one: one.job_id)


def expected_waits(
    cluster: Cluster,
    situation: Situation,
    jobs: Sequence[int],
    places: Sequence[int],
    *,
    most: int = MOST_SCENARIOS,
) -> Expected:
    """Returns the expected waits of some jobs of a snapshot, from simulated futures in which jobs end after run times
    that resemble those of other jobs.

    - `jobs`: the keys of the snapshot's jobs. The snapshot may have one more job, which is not stored.
    - `places`: the jobs in the snapshot whose waits are returned.
    - `most`: how many futures are simulated at most.
    """
    view = situation.view
    past, groups, elapsed, longest = _run_times(cluster, jobs, view.jobs.resident)
    if len(view.jobs) > len(jobs):  # a job that is not stored: only its wait matters
        groups = np.vstack([groups, np.zeros((1, groups.shape[1]), dtype=np.int64)])
        elapsed, longest = np.append(elapsed, 0.0), np.append(longest, np.inf)
    waits, endless = [], np.isinf(elapsed)  # jobs that do not end by themselves
    replaced = replaced_replicas(jobs)
    ends_after = [(one.place, one.after, one.seconds) for one in replaced if one.after is not None]
    for seed in range(max(1, min(most, MOST_SIMULATED // len(view.jobs)))):
        chance = np.random.Generator(np.random.PCG64(seed))
        left = past.remaining(groups, np.where(endless, 0.0, elapsed), chance, expected=view.jobs.expected)
        left = np.minimum(left, np.maximum(longest - np.where(endless, 0.0, elapsed), SHORTEST))
        left = np.where(endless, np.inf, left)
        left[[one.place for one in replaced if one.after is None]] = [
            one.seconds for one in replaced if one.after is None
        ]
        waits.append(sample_starts(situation, places, left, seed=seed, ends_after=ends_after))
    return expected_of(np.array(waits), quantum=view.settings.quantum, horizon=HORIZON.total_seconds())


def _run_times(
    cluster: Cluster, jobs: Sequence[int], resident: Floats
) -> tuple[PastRunTimes, Ints, Floats, Floats]:
    """Returns the run times of the cluster's latest ended jobs and of those that have run but not ended, and of the
    unfinished jobs `jobs`

    - their groups (J, L);
    - the seconds that each has held GPUs so far (J,), which are infinite for replicas of services;
    - the seconds of its time limit (J,), infinite for jobs without one. Limits of teams do not count.
    """
    columns = ("tenant_id", "owner_id", "kind", "name", F("workers") * F("gpus_per_worker"), "held_for")
    ended = Job.objects.filter(cluster=cluster, state__in=Job.ENDED, first_started_at__isnull=False)
    history = list(
        ended.exclude(kind=Job.Kind.REPLICA).order_by("-ended_at").values_list(*columns)[:MOST_PAST]
    )
    found = Job.objects.filter(pk__in=jobs).values_list("pk", *columns, "time_limit_hours")
    rows = {pk: rest for pk, *rest in found}
    groups = np.zeros((len(jobs), LEVELS), dtype=np.int64)
    elapsed, longest = np.zeros(len(jobs)), np.full(len(jobs), np.inf)
    for place, pk in enumerate(jobs):
        *same, held, limit = rows[pk]
        if limit is not None:
            longest[place] = limit * 3600
        groups[place] = _groups(*same)
        is_endless = same[2] == Job.Kind.REPLICA
        elapsed[place] = np.inf if is_endless else held.total_seconds() + resident[place]
    goes_on = (elapsed > 0) & np.isfinite(elapsed)
    past = PastRunTimes.of(
        np.concatenate([[held.total_seconds() for *_, held in history], elapsed[goes_on]]),
        np.concatenate(
            [
                np.array([_groups(*row[:-1]) for row in history], dtype=np.int64).reshape(-1, LEVELS),
                groups[goes_on],
            ]
        ),
        np.arange(len(history) + int(goes_on.sum())) < len(history),
    )
    return past, groups, elapsed, longest


LEVELS = 4


def _groups(tenant: int, owner: int, kind: str, name: str, gpus: int) -> tuple[int, ...]:
    """Returns numbers of the groups of similar jobs that a job is in, from the narrowest to the widest.

    Jobs of the same user with the same number of GPUs are most alike if their names differ only in digits.
    """
    told = (
        (kind, owner, gpus, re.sub(r"[0-9]+", "", name)),
        (kind, owner, gpus),
        (kind, tenant),
        (kind,),
    )
    return tuple(crc32(repr(one).encode()) for one in told)
