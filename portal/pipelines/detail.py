"""Data for a pipeline's page: how long its steps waited and ran, what they cost, and when they are expected to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from accounting.core.clock import now_from_database
from accounting.models import User
from portal.jobs.costs import Use, use_by
from scheduling.models import Job, Pipeline, PipelineStep
from scheduling.pipelines.ends import Ends, ends_of, time_on_gpus
from scheduling.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class StepWork:
    """What became of a step until now.

    - `gpus`: of the whole gang; of an elastic one the least with which it runs.
    - `waited_seconds`: how long its latest job waited for its first start; None before it is submitted.
    - `held_seconds`: how long its latest job has held GPUs; None before its first start.
    - `use`: what all its jobs have used, also those that ran before it was run again.
    - `ends`: when it is expected to end; None if it has ended, or if that is unknown.
    """

    gpus: int
    waited_seconds: float | None
    held_seconds: float | None
    use: Use
    ends: datetime | None


@dataclass(frozen=True)
class Work:
    """What became of all steps, by id, and of the whole pipeline."""

    steps: Mapping[int, StepWork]
    use: Use
    ends: Ends


def steps_of(shown: Pipeline) -> list[PipelineStep]:
    """Returns the steps with what `work_of` reads: jobs with forecasts, and needs."""
    found = shown.steps.select_related("job__forecast").defer("job__spec")
    return list(found.prefetch_related("needs__on", "needs__job"))


def work_of(shown: Pipeline, steps: Sequence[PipelineStep], user: User) -> Work:
    """Returns what became of a pipeline's steps, which have `job` with its `forecast`, and their `needs`."""
    now = now_from_database()
    used = use_by("step_index", Job.objects.filter(pipeline=shown), user)
    held = time_on_gpus([step.job for step in steps if step.job], now)
    ends = ends_of(shown, steps, now)
    found = {}
    for step in steps:
        job = step.job
        started = job.first_started_at if job else None
        found[step.pk] = StepWork(
            gpus=JobSpec.stored(step.spec).gpus,
            waited_seconds=job.waited_seconds_at(now) if job else None,
            held_seconds=held[job.pk].total_seconds() if job and started else None,
            use=used.get(step.index, Use()),
            ends=ends.by_step.get(step.pk),
        )
    return Work(found, _sum(used), ends)


def _sum(used: Mapping[int | None, Use]) -> Use:
    whole = Use()
    for use in used.values():
        whole.gpu_seconds += use.gpu_seconds
        for currency, money in use.costs.items():
            whole.costs[currency] = whole.costs.get(currency, Decimal(0)) + money
    return whole
