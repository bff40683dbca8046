"""Keeps forecasts of starts, and compares them with what came: from that, later intervals are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from fairshare.model import Floats
from fairshare.starts.calibration import MOST_OUTCOMES, Outcomes
from scheduling.core import pubsub
from scheduling.models import Cluster, JobEvent, KeptForecast
from scheduling.models.event_codes import EventCode, Message

EXPECTED = "expected"  # kind of the event that says what was expected and what came
# Latest end of an interval that is kept, in seconds: ten years.
LONGEST = 10 * 365 * 86400.0
# A job's next forecast is kept after this many quanta at the earliest.
FIRST_AGAIN = 4


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of earlier forecasts of a cluster.

    - `outcomes`: the latest forecasts, of which later intervals are made.
    - `latest`: of each job with an open forecast, the times of its first and its latest one.
    """

    outcomes: Outcomes
    latest: dict[int, tuple[datetime, datetime]]

    def age(self, job: int, now: datetime) -> timedelta:
        """Returns how long ago the first forecast of a job was made; 0 if it has none that is open."""
        return max(now - self.latest[job][0], timedelta(0)) if job in self.latest else timedelta(0)


def outcomes_of(cluster: Cluster, *, now: datetime) -> Outcomes:
    """Returns the latest forecasts of a cluster that were made before `now`, with what is known of them then."""
    newest = KeptForecast.objects.filter(cluster=cluster, at__lt=now).order_by("-at", "-id")
    columns = ("at", "age", "expected", "earliest", "latest", "started_at", "closed_at")
    rows = list(newest.values_list(*columns)[:MOST_OUTCOMES])[::-1]
    waited = [(started or closed or now) - at for at, *_, started, closed in rows]
    return Outcomes(
        _seconds(now - at for at, *_ in rows),
        _seconds(expected - at for at, _, expected, *_ in rows),
        _seconds(age for _, age, *_ in rows),
        np.maximum(_seconds(waited), 0.0),  # a clock may have been set back
        np.array([started is not None for *_, started, _ in rows], dtype=np.bool_),
        _seconds(earliest - at for at, _, _, earliest, *_ in rows),
        _seconds(latest - at for at, _, _, _, latest, *_ in rows),
    )


def _seconds(times: Iterable[timedelta]) -> Floats:
    return np.array([time.total_seconds() for time in times], dtype=np.float64)


def learn(cluster: Cluster) -> Kept:
    """Records what came of the open forecasts of a cluster, and writes for each job that has started what was expected.
    Returns what later forecasts need.

    Repeating it changes nothing. The caller holds a transaction and the lock of the cluster's forecasts.
    """
    now = now_from_database()
    rows = list(
        KeptForecast.objects.filter(cluster=cluster, closed_at=None)
        .select_related("job")
        .defer("job__spec")
        .order_by("at", "id")
    )
    changed: list[KeptForecast] = []
    latest: dict[int, tuple[datetime, datetime]] = {}
    for row in rows:
        started, ended = row.job.first_started_at, row.job.ended_at
        if started is not None:
            row.started_at = max(started, row.at)  # a clock may have been set back
        row.closed_at = row.started_at or ended
        if row.closed_at is not None:
            changed.append(row)
        else:
            first, _ = latest.get(row.job_id, (row.at, row.at))
            latest[row.job_id] = first, row.at
    update_rows(changed, ["started_at", "closed_at"])
    _tell(row for row in changed if row.is_first and row.started_at is not None)
    return Kept(outcomes_of(cluster, now=now), latest)


def _tell(started: Iterable[KeptForecast]) -> None:
    """Writes into the history of each job between which times its start was expected, and whether it came so."""
    events = []
    for row in started:
        came = row.started_at
        assert came is not None  # noqa: S101  # the caller passes forecasts of jobs that have started
        when = "earlier" if came < row.earliest else "later" if came > row.latest else "within"
        message = Message.of(
            EventCode.EXPECTED_START,
            at=row.at.isoformat(),
            earliest=row.earliest.isoformat(),
            latest=row.latest.isoformat(),
            when=when,
        )
        events.append(JobEvent.of(row.job, EXPECTED, message, at=came, epoch=min(row.job.epoch, 1)))
    insert_rows(events)
    pubsub.publish(*(f"job:{event.job_id}" for event in events))


def keep(
    cluster: Cluster,
    kept: Kept,
    forecasts: Iterable[KeptForecast],
    *,
    quantum: float,
) -> None:
    """Stores those of the forecasts that are the first of their job, or the first since the job has waited twice as
    long."""
    again = timedelta(seconds=FIRST_AGAIN * quantum)
    rows = []
    for forecast in forecasts:
        had = kept.latest.get(forecast.job_id)
        if had is None or forecast.at - had[0] >= max(2 * (had[1] - had[0]), again):
            rows.append(forecast)
    insert_rows(rows)
