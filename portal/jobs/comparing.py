"""The page that compares two jobs: their results, and the fields in which their specifications differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounting.core import wording as amounts
from accounting.core.clock import now_from_database
from accounting.models import User
from portal.jobs.detail import cost_of
from portal.jobs.metric_charts import number_with, unit_of_bytes
from portal.jobs.views import visible_job
from portal.user_request import UserRequest
from portal.wording import money
from scheduling.metrics.reading import JobMetrics, read_metrics_of
from scheduling.models import Job, Lease
from scheduling.spec.differences import differences
from scheduling.spec.job_spec import JobSpec

NONE = "–"


@dataclass(frozen=True)
class Result:
    """A line of the comparison: a figure of both jobs, as text."""

    label: str
    was: str
    now: str


@require_safe
def compare(request: UserRequest, pk: int, other: int) -> HttpResponse:
    """Shows the results of two jobs, and the fields in which their specifications differ."""
    pair = [visible_job(request, pk), visible_job(request, other)]
    was, now = (JobSpec.stored(job.spec) for job in pair)
    context = {
        "pair": pair,
        "one": pair[0],
        "other": pair[1],
        "results": _results(pair, request.user),
        "metrics": _metrics(pair),
        "differences": differences(was, now),
    }
    return render(request, "jobs/compare.html", context | {"was": f"Job {pk}", "now": f"Job {other}"})


def _results(pair: Sequence[Job], user: User) -> list[Result]:
    now = now_from_database()
    was, is_now = (_result_of(job, user, now) for job in pair)
    return [Result(label, text, is_now[label]) for label, text in was.items()]


def _result_of(job: Job, user: User, now: datetime) -> dict[str, str]:
    """Returns the figures of a job by their label. Those that still grow end with "so far"."""
    cost = cost_of(job, user)
    types = Lease.objects.filter(job=job).exclude(held_from=None).order_by("generation__name")
    duration = NONE
    if job.first_started_at:
        lasted = ((job.ended_at or now) - job.first_started_at).total_seconds()
        duration = _so_far(amounts.duration(lasted), job.has_ended)
    hours = f"{amounts.number(float(cost.gpu_seconds) / 3600)} GPU-h"
    costs = ", ".join(money(amount, currency) for currency, amount in cost.amounts)
    return {
        "State": job.get_state_display(),
        "GPU type": ", ".join(types.values_list("generation__name", flat=True).distinct()) or NONE,
        "Waiting time": _so_far(amounts.duration(job.waited_seconds_at(now)), job.waited_seconds is not None),
        "Duration": duration,
        "GPU time": _so_far(hours, job.has_ended),
        "Cost": _so_far(costs, job.has_ended) if costs else NONE,
    }


def _so_far(text: str, is_final: bool) -> str:
    return text if is_final else f"{text} so far"


def _metrics(pair: Sequence[Job]) -> list[Result]:
    """Returns the last value of each metric that one of the jobs has."""
    read = read_metrics_of([job.pk for job in pair])
    was, now = (_last_values(read.get(job.pk)) for job in pair)
    return [
        Result(label, was.get(label, NONE), now.get(label, NONE)) for label in dict.fromkeys([*was, *now])
    ]


def _last_values(found: JobMetrics | None) -> dict[str, str]:
    """Returns the last value of each metric by its label; of a metric of several GPUs, the mean over the GPUs."""
    values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one in found.series if found else ():
        label = f"{one.label} (mean of the GPUs)" if one.gpu else one.label
        values[label, one.unit].append(one.whole.last)
    last = {}
    for (label, unit), some in values.items():
        mean = sum(some) / len(some)
        size, unit_shown = unit_of_bytes(mean) if unit == "bytes" else (1, unit)
        last[label] = number_with(mean / size, unit_shown)
    return last
