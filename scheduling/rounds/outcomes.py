"""Keeps forecasts of starts, compares them with what came, and learns from that how wide intervals must be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from accounting.core.bulk import insert_rows, update_rows
from accounting.core.clock import now_from_database
from fairshare.starts.calibration import Margins
from scheduling.core import pubsub
from scheduling.models import Cluster, JobEvent, JobForecast, KeptForecast, StartMargins
from scheduling.models.event_codes import EventCode, Message

EXPECTED = "expected"  # kind of the event that says what was expected and what came
# Latest end of an interval that is kept, in seconds: ten years.
LONGEST = 10 * 365 * 86400.0
# A job's next forecast is kept after this many quanta at the earliest.
FIRST_AGAIN = 4
MARGIN_FIELDS = ("below", "above", "below_known", "above_known")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of earlier forecasts of a cluster.

    - `margins`: by whether a forecast is the first of its job.
    - `latest`: of each job with an open forecast, the times of its first and its latest one.
    """

    margins: dict[bool, Margins]
    latest: dict[int, tuple[datetime, datetime]]


def margins_of(cluster: Cluster) -> dict[bool, Margins]:
    """Returns the margins of a cluster, by whether a forecast is the first of its job."""
    stored = {
        row.is_first: Margins(**{name: getattr(row, name) for name in MARGIN_FIELDS})
        for row in StartMargins.objects.filter(cluster=cluster)
    }
    return {is_first: stored.get(is_first, Margins()) for is_first in (True, False)}


def learn(cluster: Cluster) -> Kept:
    """Records what came of the open forecasts of a cluster, moves the cluster's margins, and writes for each job that
    has started what was expected. Returns what later forecasts need.

    Repeating it changes nothing. The caller holds a transaction and the lock of the cluster's forecasts.
    """
    now = now_from_database()
    rows = list(
        KeptForecast.objects.filter(cluster=cluster, closed_at=None)
        .select_related("job")
        .defer("job__spec")
        .order_by("at", "id")
    )
    margins = margins_of(cluster)
    known: list[tuple[datetime, int, KeptForecast, bool]] = []
    changed: dict[int, KeptForecast] = {}
    for row in rows:
        started, ended = row.job.first_started_at, row.job.ended_at
        if started is not None:
            row.started_at = max(started, row.at)  # a clock may have been set back
        until = row.started_at or ended or now
        for is_below, side in ((True, row.earliest), (False, row.latest)):
            if getattr(row, "below_known" if is_below else "above_known"):
                continue
            if row.started_at is not None or side <= until:
                known.append((min(side, until), row.pk, row, is_below))
        if row.started_at is not None or ended is not None:
            row.closed_at = until
            changed[row.pk] = row
    for _, _, row, is_below in sorted(known, key=lambda one: (*one[:2], one[3])):
        had, started = margins[row.is_first], row.started_at
        if is_below:
            row.below_known = True
            margins[row.is_first] = had.after_below(missed=started is not None and started < row.earliest)
        else:
            row.above_known = True
            margins[row.is_first] = had.after_above(missed=started is None or started > row.latest)
        changed[row.pk] = row
    update_rows(changed.values(), ["below_known", "above_known", "started_at", "closed_at"])
    if known:
        StartMargins.objects.bulk_create(
            [
                StartMargins(
                    cluster=cluster, is_first=is_first, **{name: getattr(one, name) for name in MARGIN_FIELDS}
                )
                for is_first, one in margins.items()
            ],
            update_conflicts=True,
            unique_fields=["cluster", "is_first"],
            update_fields=list(MARGIN_FIELDS),
        )
    _tell(row for row in changed.values() if row.is_first and row.started_at is not None)
    latest: dict[int, tuple[datetime, datetime]] = {}
    for row in rows:
        if row.closed_at is None:
            first, _ = latest.get(row.job_id, (row.at, row.at))
            latest[row.job_id] = first, row.at
    return Kept(margins, latest)


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
    forecasts: Iterable[tuple[JobForecast, datetime]],
    *,
    now: datetime,
    quantum: float,
) -> None:
    """Stores those of the forecasts, each with the end of its interval, that are the first of their job, or the first
    since the job has waited twice as long."""
    again = timedelta(seconds=FIRST_AGAIN * quantum)
    rows = []
    for forecast, latest in forecasts:
        had = kept.latest.get(forecast.job_id)
        if had is not None and now - had[0] < max(2 * (had[1] - had[0]), again):
            continue
        rows.append(
            KeptForecast(
                cluster=cluster,
                job_id=forecast.job_id,
                is_first=had is None,
                at=now,
                earliest=min(forecast.earliest, latest),
                latest=latest,
            )
        )
    insert_rows(rows)
