"""Predicts when a pipeline ends, from the run times of its steps: those that are expected, or those of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from graphlib import TopologicalSorter

from scheduling.models import Job, JobForecast, Lease, Pipeline, PipelineStep, StepNeed

LOOKED_AT = 2000  # the newest jobs of the team, among which earlier runs of the steps are looked for
NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class Ends:
    """When the steps of a pipeline that have not ended are expected to end.

    - `by_step`: by id of the step. Steps that are not submitted are assumed to start as soon as what they need has
      ended.
    - `whole`: when the last step that is expected to run ends; None if that is unknown, or no step is left.
    - `why`: in words why it is unknown; empty if it is known.
    """

    by_step: Mapping[int, datetime]
    whole: datetime | None
    why: str


def ends_of(pipeline: Pipeline, steps: Sequence[PipelineStep], now: datetime) -> Ends:
    """Returns when the steps are expected to end. They have `job` with its `forecast`, and their `needs`.

    A step that needs a failure is expected not to run, and so is a step that needs its success.
    """
    left = {step.pk: step for step in steps if step.state in PipelineStep.UNFINISHED}
    run_times = _run_times(pipeline, list(left.values()))
    had = time_on_gpus([step.job for step in left.values() if step.job], now)
    ends: dict[int, datetime | None] = {}  # None: unknown. Steps that are expected not to run are left out.
    whys: list[str] = []
    needs = {
        key: [need.on_id for need in step.needs.all() if need.on_id in left] for key, step in left.items()
    }
    for key in TopologicalSorter(needs).static_order():
        step = left[key]
        if step.job is None and any(_is_unlikely(need, left, ends) for need in step.needs.all()):
            continue
        run_time = run_times.get(key)
        if step.job is not None:
            begins, why = _begins(step.job, now)
            run_time = None if run_time is None else run_time - had.get(step.job.pk, NO_TIME)
        else:
            begins, why = _ready(step, ends, now)
        if step.job is not None and step.job.has_ended:  # the controller has not looked at it yet
            run_time = NO_TIME
        elif run_time is None:
            why = "no run time is known; write expected_hours"
        elif run_time <= NO_TIME:
            why = "it runs longer than expected"
        if why:
            whys.append(f"{step.name}: {why}")
        ends[key] = None if begins is None or run_time is None or why else begins + run_time
    known = {key: end for key, end in ends.items() if end is not None}
    whole = max(known.values(), default=None) if len(known) == len(ends) else None
    return Ends(known, whole, whys[0] if whys else "")


def _is_unlikely(
    need: StepNeed, left: Mapping[int, PipelineStep], ends: Mapping[int, datetime | None]
) -> bool:
    """Returns whether a need will not happen if everything succeeds. `ends` has the needed step if it runs."""
    is_open = need.on_id in left if need.on_id else bool(need.job and not need.job.has_ended)
    if need.when == StepNeed.When.FAILURE:
        return is_open
    return need.when == StepNeed.When.SUCCESS and need.on_id in left and need.on_id not in ends


def _ready(
    step: PipelineStep, ends: Mapping[int, datetime | None], now: datetime
) -> tuple[datetime | None, str]:
    """Returns when everything that the step needs has ended, and why that is unknown if the reason is no other step."""
    begins: datetime | None = now
    for need in step.needs.all():
        if need.on_id is None and need.job and not need.job.has_ended:
            return None, f"it is not known when {need.label} ends"
        if need.on_id is not None and need.on_id in ends:
            end = ends[need.on_id]
            begins = None if begins is None or end is None else max(begins, end)
    return begins, ""


def _begins(job: Job, now: datetime) -> tuple[datetime | None, str]:
    """Returns when a submitted job starts or continues, at the latest, and why that is unknown."""
    if job.state not in Job.WAITING:
        return now, ""
    forecast: JobForecast | None = getattr(job, "forecast", None)
    if forecast is None or forecast.starts_by is None:
        return None, "it is not known when it starts"
    return max(now, forecast.starts_by), ""


def _run_times(pipeline: Pipeline, steps: Sequence[PipelineStep]) -> dict[int, timedelta]:
    """Returns the whole run time of each step for which it is expected or known, by id of the step."""
    found: dict[int, timedelta] = {}
    for step in steps:
        hours = step.spec.get("expected_hours")
        seconds = step.job.expected_seconds if step.job else hours and hours * 3600
        if seconds:
            found[step.pk] = timedelta(seconds=seconds)
    names = {step.pk: step.spec["name"] for step in steps if step.pk not in found}
    if names:
        newest = Job.objects.filter(tenant=pipeline.tenant_id).order_by("-pk").values("pk")[:LOOKED_AT]
        runs = Job.objects.filter(pk__in=newest, name__in=names.values(), state=Job.State.SUCCEEDED)
        runs = runs.exclude(first_started_at=None).order_by("name", "-pk").distinct("name")
        known = dict(runs.values_list("name", "held_for"))
        found |= {key: known[name] for key, name in names.items() if name in known}
    return found


def time_on_gpus(jobs: Sequence[Job], now: datetime) -> dict[int, timedelta]:
    """Returns how long jobs have held GPUs until now, by id."""
    held = Lease.objects.filter(job__in=jobs, state__in=Lease.HOLDING, held_from__isnull=False)
    rows = held.values_list("job_id", "held_from") if jobs else ()
    since = {job: at for job, at in rows if at is not None}
    return {job.pk: job.held_for + (now - since[job.pk] if job.pk in since else NO_TIME) for job in jobs}
