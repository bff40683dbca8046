"""The view of a job's metrics, also beside those of other jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.http import HttpResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.views.decorators.http import require_safe

from accounting.core.numbers import read_key
from accounting.core.wording import number
from portal.fragments import render_page
from portal.jobs.detail import Strip, Stripe, colours_of, leases_of, why_ended
from portal.jobs.metric_charts import (
    MOST_JOBS,
    Axis,
    Steps,
    TimeAxis,
    draw,
    draw_compared,
    number_with,
    unit_of_bytes,
)
from portal.jobs.views import frame, visible_job
from portal.user_request import UserRequest
from scheduling.metrics.names import GPU_METRICS
from scheduling.metrics.reading import MOST_POINTS, JobMetrics, Series, read_metrics_of
from scheduling.metrics.steps import StepAxis, axis_name, by_step
from scheduling.metrics.thinning import MOST
from scheduling.models import Cluster, Job, Lease, Trade

BETWEEN = re.compile(r"[,# ]+")  # between the ids of jobs to compare with
SHORT = timedelta(minutes=5)  # of shorter runs, an axis of time has few points
MOST_DRAWN = 24_000  # points by step on one page, about
MOST_MARKS = 200  # leases, and trades, on one axis
PERIODS = {"1h": ("Last hour", timedelta(hours=1)), "6h": ("Last 6 hours", timedelta(hours=6)),
           "1d": ("Last day", timedelta(days=1))}  # fmt: skip
LEFT_OUT = {
    "names": "Values of further metrics that were left out, because a job may have 50 names: {}.",
    "long_names": "Values that were left out, because their names are too long or not printable: {}.",
    "not_numbers": "Values that were left out, because they are no numbers, such as NaN or infinity: {}.",
    "bytes": "Bytes of output that were not searched for metrics, because they came too fast: {}.",
    "damaged": "Event files that were left out, because they do not have TensorBoard's format: {}.",
    "files": "Event files that were left out, because a job may have 20: {}.",
}


@dataclass(frozen=True)
class Mark:
    """A moment or a period on the time axis. `x` and `width` are in per cent."""

    x: str
    width: str
    label: str


@require_safe
def metrics(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a job's metrics. `?last=` selects a period, and `?with=` the numbers of jobs to compare with.

    `?axis=step` and `?axis=time` select the axis. Without it, short runs of programs that report steps have an axis of
    steps, because on an axis of time they would have few points.
    """
    shown = visible_job(request, pk)
    others, unknown = _others(request, shown)
    context = frame(request, shown, "metrics") | {
        "others": others,
        "unknown": unknown,
        "most_jobs": MOST_JOBS,
        "periods": [(key, label) for key, (label, _) in PERIODS.items()],
        "last": request.GET.get("last", "") if request.GET.get("last") in PERIODS else "",
    }
    axis = request.GET.get("axis", "")
    asked = {"step": True, "time": False}.get(axis)
    context["axis_asked"] = axis if asked is not None else ""
    if others:
        context |= compared([shown, *others], asked=asked)
    else:
        context |= _of_one(request, shown, context["last"], asked=asked)
    return render_page(request, "jobs/metrics.html", context)


def _others(request: UserRequest, shown: Job) -> tuple[list[Job], list[str]]:
    """Returns the jobs to compare with, and what was entered that is no job that the user may see."""
    entered = list(filter(None, BETWEEN.split(request.GET.get("with", "")[:200])))
    keys = {text: read_key(text) for text in list(dict.fromkeys(entered))[: MOST_JOBS - 1]}
    wanted = [key for key in keys.values() if key not in {0, shown.pk}]
    visible = (
        Job.objects.visible_to(request.user).filter(pk__in=wanted).select_related("tenant") if wanted else []
    )
    found = {job.pk: job for job in visible}
    unknown = [text for text, key in keys.items() if key != shown.pk and key not in found]
    return [found[key] for key in wanted if key in found], unknown


def _wants_steps(found: Mapping[int, JobMetrics], asked: bool | None) -> bool:
    """Returns whether to show metrics by step. If the user chose no axis, short runs are, whose programs report
    steps."""
    is_short = all(one.count * one.seconds <= SHORT.total_seconds() for one in found.values())
    return bool(axis_name(found.values())) and (is_short if asked is None else asked)


def _of_one(request: UserRequest, job: Job, last: str, *, asked: bool | None) -> dict[str, Any]:
    begins = None
    if last:
        begins = (job.ended_at or timezone.now()) - PERIODS[last][1]
    read = read_metrics_of([job.pk], begins=begins)
    found = read.get(job.pk)
    if found is None or not found.series:
        return {"notes": notes_of(found), "charts": None}
    rest = {
        "has_steps": bool(axis_name(read.values())),
        "rows": rows_of(found),
        "notes": notes_of(found),
        "gpu_note": gpu_note(job, found.series),
    }
    if _wants_steps(read, asked) and (steps := by_step(read, begins=begins, most_points=_most_points(read))):
        axis, on_axis = steps
        charts = draw(on_axis[job.pk], Steps(axis.name, axis.first, axis.last))
        return {"charts": charts, **_by_step(axis, on_axis), **rest}
    held = _held(job, found)
    return {
        "charts": draw(found, TimeAxis(found.count)),
        "times": json.dumps([moment_of(at) for at in found.times]),
        "axis": [moment_of(found.begins), moment_of(found.ends)],
        "leases": _strip(held, found),
        "moves": _moves(job, held, found),
        "trades": _trades(job, found),
        "step_text": timedelta_text(found.seconds),
        **rest,
    }


def _by_step(axis: StepAxis, shown: Mapping[int, JobMetrics]) -> dict[str, Any]:
    return {
        "by_step": True,
        "axis": [axis.label(axis.first), axis.label(axis.last)],
        "is_thinned": any(one.is_thinned for one in shown.values()),
    }


def compared(
    jobs: Sequence[Job], *, asked: bool | None = None, labels: Sequence[str] = (), only: str = ""
) -> dict[str, Any]:
    """Returns the template context of charts with a line for each of at most MOST_JOBS jobs. `labels` are the names of
    the lines, by default those of the jobs; `only` is the name of the one number to draw. `asked` says whether the user
    chose to see steps; None if the user chose no axis."""
    origins = {job.pk: job.first_started_at or job.created_at for job in jobs}
    shown = found = read_metrics_of([job.pk for job in jobs], origins=origins)
    axis: Axis = TimeAxis(max((one.count for one in found.values()), default=0))
    steps = by_step(found, only=only, most_points=_most_points(found)) if _wants_steps(found, asked) else None
    if steps:
        shown = steps[1]
        axis = Steps(steps[0].name, steps[0].first, steps[0].last)
    labels = labels or [f"#{job.pk} {job.name}" for job in jobs]
    lines = [(label, shown[job.pk]) for label, job in zip(labels, jobs, strict=True) if job.pk in shown]
    charts = draw_compared(lines, axis, only=only)
    context = {
        "charts": charts if charts.groups else None,
        "is_compared": True,
        "has_steps": bool(axis_name(found.values())),
        "notes": [],
        "jobs": [(number % MOST_JOBS + 1, job) for number, job in enumerate(jobs)],
    }
    if steps:
        return context | _by_step(*steps)
    count = int(axis.width)
    return context | {
        "times": json.dumps([_after(number, found) for number in range(count)]),
        "axis": [_after(0, found), _after(count, found)],
        "step_text": timedelta_text(_seconds(found)),
    }


def _most_points(found: Mapping[int, JobMetrics]) -> int:
    """Returns how many points of each series a page draws, so that it has at most about MOST_DRAWN of them."""
    lines = sum(len(one.series) for one in found.values())
    return min(MOST, max(MOST_POINTS, MOST_DRAWN // max(lines, 1)))


def timedelta_text(seconds: int) -> str:
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            return f"{seconds // size} {word}{'' if seconds == size else 's'}"
    return f"{seconds} seconds"


def _seconds(found: dict[int, JobMetrics]) -> int:
    return next((one.seconds for one in found.values()), 10)


def _after(number: int, found: dict[int, JobMetrics]) -> str:
    return f"{timedelta(seconds=number * _seconds(found))} after the start"


def moment_of(at: datetime) -> str:
    return date_format(timezone.localtime(at), "j M H:i:s")


@dataclass(frozen=True)
class _Axis:
    begins: datetime
    ends: datetime

    def percent(self, at: datetime) -> float:
        whole = (self.ends - self.begins).total_seconds()
        return 100 * min(max((at - self.begins).total_seconds() / whole, 0.0), 1.0)

    def mark(self, since: datetime, until: datetime, label: str) -> Mark:
        x = self.percent(since)
        return Mark(f"{x:.3f}%", f"{max(self.percent(until) - x, 0.2):.3f}%", label)


def _held(job: Job, found: JobMetrics) -> list[Lease]:
    """Returns the leases that held GPUs in the period of the metrics, the latest ones, oldest first."""
    inside = Q(held_until=None) | Q(held_until__gt=found.begins)
    leases = leases_of(job).filter(inside, held_from__lt=found.ends)[:MOST_MARKS]
    return sorted(leases, key=lambda lease: lease.epoch)


def _strip(held: Sequence[Lease], found: JobMetrics) -> Strip:
    axis = _Axis(found.begins, found.ends)
    colours = colours_of(lease.generation for lease in held)
    stripes = []
    for lease in held:
        until = lease.held_until or found.ends
        mark = axis.mark(lease.held_from or found.begins, until, "")
        label = f"Attempt {lease.epoch}: {lease.gpus} × {lease.generation.name}"
        if lease.held_until:
            label += f", {why_ended(lease)}"
        stripes.append(Stripe(mark.x, mark.width, colours[lease.generation.name], label))
    return Strip(found.begins, found.ends, stripes, list(colours.items()))


def _moves(job: Job, held: Sequence[Lease], found: JobMetrics) -> list[Mark]:
    """Returns the moments in the period at which an attempt ended, because the job moved or its GPUs were needed."""
    axis = _Axis(found.begins, found.ends)
    return [
        axis.mark(lease.held_until, lease.held_until, f"{moment_of(lease.held_until)}: {why_ended(lease)}")
        for lease in held
        if lease.held_until and lease.held_until < found.ends and lease.held_until != job.ended_at
    ]


def _trades(job: Job, found: JobMetrics) -> list[Mark]:
    """Returns the trades of the job's team in the period, on GPU types of the job's cluster."""
    sides = Q(seller=job.tenant_id) | Q(buyer=job.tenant_id)
    inside = Q(ends=None) | Q(ends__gt=found.begins)
    trades = Trade.objects.filter(sides, inside, begins__lt=found.ends, round__cluster=job.cluster_id)
    axis = _Axis(found.begins, found.ends)
    return [
        axis.mark(trade.begins, trade.ends or found.ends, _trade_label(trade, job.tenant_id))
        for trade in trades.select_related("slow", "fast").order_by("-begins")[:MOST_MARKS]
    ]


def _trade_label(trade: Trade, tenant: int) -> str:
    slow, fast = f"{trade.slow_gpus:.3g} × {trade.slow.name}", f"{trade.fast_gpus:.3g} × {trade.fast.name}"
    given, taken = (fast, slow) if trade.seller_id == tenant else (slow, fast)
    return f"{moment_of(trade.begins)}: the team gives {given} for {taken}"


def rows_of(found: JobMetrics) -> list[dict[str, str]]:
    """Returns a row for each series: its last, mean, lowest and highest value, as text."""
    rows = []
    for one in found.series:
        whole = one.whole
        size, unit = unit_of_bytes(whole.high) if one.unit == "bytes" else (1, one.unit)
        values = {"last": whole.last, "mean": whole.mean, "low": whole.low, "high": whole.high}
        rows.append(
            {name: number_with(value / size, unit) for name, value in values.items()}
            | {"label": one.label, "gpu": one.gpu, "values": f"{whole.size}"}
        )
    return rows


def notes_of(found: JobMetrics | None) -> list[str]:
    """Returns sentences on what was left out."""
    left_out = found.left_out if found else {}
    return [text.format(number(left_out[word])) for word, text in LEFT_OUT.items() if left_out.get(word)]


def gpu_note(job: Job, series: Sequence[Series]) -> str:
    """Returns a sentence on which metrics of GPUs the cluster does not give; "" if it gives all."""
    known = {one.metric for one in series if one.is_measured}
    missing = [metric for metric in GPU_METRICS if metric not in known]
    if len(missing) == len(GPU_METRICS):
        return NO_NVML if job.cluster.backend == Cluster.Backend.LOCAL else NO_SOURCE
    if missing == ["gpu_sm"]:
        return (
            "The activity of multiprocessors (SM) is not reported here: GPUs before Hopper do not count it."
        )
    return ""


NO_NVML = (
    "The GPUs of this job report no metrics, as simulated GPUs and parts of GPUs do not. The rest is shown."
)
NO_SOURCE = (
    "Fairlot has no metrics of this job's GPUs. They come from the Prometheus server that an admin sets for the "
    "cluster, with NVIDIA's DCGM exporter. The rest is shown."
)
