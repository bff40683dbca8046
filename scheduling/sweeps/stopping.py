"""Says what the metrics of members at work mean for the rules of their sweep: which member is so good that the sweep
stops, and which members are worse than the others, so that they stop early.

The second rule is the median stopping rule of Golovin et al., Google Vizier: A Service for Black-Box Optimization,
KDD 2017, section 3.2.2: a member stops at a step if its best value until then is strictly worse than the median of the
running averages of the others until the same step. There the others have ended; here they may also be at work, if they
have come as far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from statistics import median

from accounting.core.clock import now_from_database
from scheduling.backends.summaries import Summary, merged
from scheduling.metrics.reading import JobMetrics, latest_of, read_metrics_of
from scheduling.metrics.steps import by_step
from scheduling.models import Job, Sweep, SweepMember

LOOK_EVERY = timedelta(seconds=30)
LEAST_OTHERS = 3  # members that must have come as far, before a member can be worse than their median
# Members at work, and ended ones, of which one look reads the whole series. Of more, each look takes other ones.
MOST_AT_WORK, MOST_ENDED = 60, 30


@dataclass(frozen=True, slots=True)
class Look:
    """What the metrics of members at work said at the time `at`.

    - `latest`: the last value of the sweep's metric, by id of the job.
    - `outdone`: the step at which a member is worse than the median of the others, by id of the job.
    """

    at: datetime
    latest: Mapping[int, float]
    outdone: Mapping[int, float]


def look_at(sweep_id: int) -> Look | None:
    """Returns what the metrics of a sweep's members at work say; None if it has no rule for them, or was looked at less
    than LOOK_EVERY ago.

    Reads many samples, so it holds no lock.
    """
    sweep = Sweep.objects.filter(pk=sweep_id, state=Sweep.State.RUNNING).exclude(metric="").first()
    if sweep is None or (sweep.stop_at is None and sweep.median_after is None):
        return None
    now = now_from_database()
    if sweep.looked_at is not None and now - sweep.looked_at < LOOK_EVERY:
        return None
    members = SweepMember.objects.filter(sweep=sweep, job__isnull=False)
    at_work = members.filter(state=SweepMember.State.ACTIVE, job__state__in=Job.HOLDING)
    latest: dict[int, float] = {}
    if sweep.stop_at is not None:
        found = latest_of([key for key in at_work.values_list("job_id", flat=True) if key])
        latest = {job: values[sweep.metric] for job, values in found.items() if sweep.metric in values}
    outdone: Mapping[int, float] = {}
    if sweep.median_after is not None:
        ended = members.filter(state__in=(SweepMember.State.SUCCEEDED, SweepMember.State.STOPPED))
        running = list(at_work.order_by("?").values_list("job_id", flat=True)[:MOST_AT_WORK])
        compared = [*running, *ended.order_by("?").values_list("job_id", flat=True)[:MOST_ENDED]]
        # What programs report by their steps is all that is compared, so samples by time are not read.
        metrics = read_metrics_of([key for key in compared if key], begins=now)
        on_steps = by_step(metrics, only=sweep.metric)
        outdone = outdone_in(
            on_steps[1] if on_steps else {},
            metric=sweep.metric,
            higher_is_better=sweep.goal == Sweep.Goal.MAX,
            after=sweep.median_after,
            at_work=[key for key in running if key],
        )
    return Look(now, latest, outdone)


def outdone_in(
    jobs: Mapping[int, JobMetrics],
    *,
    metric: str,
    higher_is_better: bool,
    after: float,
    at_work: Collection[int],
) -> dict[int, float]:
    """Returns the jobs of `at_work` that are worse than the median of the others at the same step, with this step.

    `jobs` have their metrics by step. A job is compared from the step `after` on, and only with at least LEAST_OTHERS
    jobs that have come as far. Jobs that report no steps are not compared.
    """
    series = {
        job: next((one.points for one in metrics.series if one.name == metric and not one.is_measured), {})
        for job, metrics in jobs.items()
    }
    outdone = {}
    for job in at_work:
        own = series.get(job)
        if not own:
            continue
        step = max(own)
        others = [points for key, points in series.items() if key != job and points and max(points) >= step]
        if step < after or len(others) < LEAST_OTHERS:
            continue
        middle = median(_until(points, step).mean for points in others)
        best = _until(own, step)
        if best.high < middle if higher_is_better else best.low > middle:
            outdone[job] = step
    return outdone


def _until(points: Mapping[float, Summary], last: float) -> Summary:
    """Returns the summary of the steps up to `last`, or of the first one if all are later."""
    first = min(points)
    return reduce(merged, (points[step] for step in sorted(points) if step <= max(first, last)))
