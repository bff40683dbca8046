"""Endpoint for the metrics of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ninja import Query, Router

from portal.api.jobs.endpoints import visible_job
from portal.api.metrics import schemas
from portal.user_request import ApiRequest
from scheduling.backends.summaries import Summary
from scheduling.metrics.reading import TIME, JobMetrics, Series, read_metrics_of
from scheduling.metrics.steps import by_step

router = Router(tags=["Jobs"])
# No sample is outside of this period.
FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@router.get("/jobs/{int:job_id}/metrics", response=schemas.JobMetrics, url_name="job_metrics")
def metrics(request: ApiRequest, job_id: int, period: Query[schemas.MetricsPeriod]) -> dict[str, Any]:
    """Returns what the GPUs and the program of a job did over time, also after its end."""
    job = visible_job(request, job_id)
    begins, ends = within(period.begins), within(period.ends)
    read = read_metrics_of([job.pk], begins=begins, ends=ends, most_points=period.most_points)
    if period.by == "step":
        steps = by_step(read, begins=begins, ends=ends, most_points=period.most_points)
        found = steps[1].get(job.pk) if steps else None
    else:
        found = read.get(job.pk)
    return {
        "job": job.pk,
        "axis": found.over if found else "" if period.by == "step" else TIME,
        "seconds": found.seconds if found and found.over == TIME else 0,
        "series": [_shown(found, one) for one in found.series] if found else [],
        "left_out": read[job.pk].left_out if job.pk in read else {},
    }


def within(at: datetime | None) -> datetime | None:
    """Returns the time, moved into the years in which there may be samples."""
    return None if at is None else min(max(at, FIRST), LAST)


def _shown(metrics: JobMetrics, series: Series) -> dict[str, Any]:
    is_by_step = metrics.over != TIME
    times = {
        place: metrics.step_times[place] if is_by_step else metrics.time_of(place) for place in series.points
    }
    return {
        "name": series.metric,
        "source": series.source,
        "gpu": series.gpu,
        "unit": series.unit,
        "whole": _point(min(times.values()) if is_by_step else metrics.time_of(0), series.whole),
        "points": [
            _point(times[place], point, place if is_by_step else None)
            for place, point in sorted(series.points.items())
        ],
    }


def _point(at: datetime, point: Summary, step: float | None = None) -> dict[str, Any]:
    return {
        "at": at, "step": step, "mean": point.mean, "lowest": point.low, "highest": point.high, "last": point.last,
        "values": point.size,
    }  # fmt: skip
