"""Endpoint for the metrics of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ninja import Query, Router

from portal.api.jobs.endpoints import visible_job
from portal.api.metrics import schemas
from portal.user_request import ApiRequest
from scheduling.backends.summaries import Summary
from scheduling.metrics.reading import JobMetrics, Series, read_metrics_of

router = Router(tags=["Jobs"])
# No sample is outside of this period.
FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@router.get("/jobs/{int:job_id}/metrics", response=schemas.JobMetrics, url_name="job_metrics")
def metrics(request: ApiRequest, job_id: int, period: Query[schemas.MetricsPeriod]) -> dict[str, Any]:
    """Returns what the GPUs and the program of a job did over time, also after its end."""
    job = visible_job(request, job_id)
    found = read_metrics_of(
        [job.pk],
        begins=within(period.begins),
        ends=within(period.ends),
        most_points=period.most_points,
    ).get(job.pk)
    return {
        "job": job.pk,
        "seconds": found.seconds if found else 0,
        "series": [_shown(found, one) for one in found.series] if found else [],
        "left_out": found.left_out if found else {},
    }


def within(at: datetime | None) -> datetime | None:
    """Returns the time, moved into the years in which there may be samples."""
    return None if at is None else min(max(at, FIRST), LAST)


def _shown(metrics: JobMetrics, series: Series) -> dict[str, Any]:
    return {
        "name": series.metric,
        "source": series.source,
        "gpu": series.gpu,
        "unit": series.unit,
        "whole": _point(metrics.time_of(0), series.whole),
        "points": [_point(metrics.time_of(place), point) for place, point in sorted(series.points.items())],
    }


def _point(at: datetime, point: Summary) -> dict[str, Any]:
    return {
        "at": at, "mean": point.mean, "lowest": point.low, "highest": point.high, "last": point.last,
        "values": point.size,
    }  # fmt: skip
