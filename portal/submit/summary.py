"""Says in one line, beside the button that submits, what the form would submit."""

from __future__ import annotations

from collections.abc import Iterable

from accounting.core.wording import counted, duration
from portal import wording
from scheduling.jobs.preflight import Costs, Preflight
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.estimate import Estimate


def of_job(preflight: Preflight, spec: JobSpec) -> str:
    """Returns how many GPUs the job has, when it would start, and what an hour costs."""
    return _line([counted(spec.gpus, "GPU"), _start(preflight), _least(preflight.cost_per_hour, "an hour")])


def of_sweep(estimate: Estimate) -> str:
    """Returns how many members with how many GPUs a sweep has, and what all of them cost."""
    members = f"{counted(estimate.members, 'member')} with {counted(estimate.gpus, 'GPU')} each"
    return _line([members, _least(estimate.cost, f"if each runs {duration(estimate.seconds)}")])


def of_pipeline(specs: Iterable[JobSpec]) -> str:
    """Returns how many steps with how many GPUs a pipeline has."""
    gpus = [spec.gpus for spec in specs]
    least, most = min(gpus, default=0), max(gpus, default=0)
    each = counted(most, "GPU") if least == most else f"{least} to {counted(most, 'GPU')}"
    return _line([counted(len(gpus), "step"), f"{each} each"])


def _start(preflight: Preflight) -> str:
    match preflight.verdict:
        case "now":
            return "can start now"
        case "never":
            return "can never run"
    if preflight.expected_start_seconds is None:
        return "will wait"
    least, most = preflight.expected_start_seconds
    return (
        f"starts within {duration(most)}" if least < 1 else f"starts in {duration(least)} to {duration(most)}"
    )


def _least(costs: Costs, per: str) -> str:
    """Returns the lowest of the costs of several GPU types; "" if there are none."""
    if not costs:
        return ""
    cost, currency = min(costs.values())
    several = len(set(costs.values())) > 1
    return f"{'from ' if several else ''}{wording.money(cost, currency)} {per}"


def _line(parts: Iterable[str]) -> str:
    return " · ".join(part for part in parts if part)
