"""Checks a pipeline before it is created: which steps are refused, and which could never run. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accounting.core.errors import Refused
from accounting.models import Tenant, User
from scheduling.jobs.later import check_only, why_never
from scheduling.models import Cluster, Job
from scheduling.pipelines.definition import Definition, Step
from scheduling.pipelines.inputs import why_no_files
from scheduling.spec.job_spec import JobSpec, SpecError


@dataclass(frozen=True, slots=True)
class Preview:
    """What is wrong with a pipeline.

    - `problems`: by path, such as `steps.train.generations`, why `create_pipeline` would refuse it.
    - `never`: by step, why its job could not run with the present nodes and limits.
    """

    problems: Mapping[str, str]
    never: Mapping[str, str]


def preview_pipeline(*, actor: User, tenant: Tenant, cluster: Cluster, definition: Definition) -> Preview:
    """Returns what is wrong with a pipeline that `actor` would create in `tenant` on `cluster`."""
    problems: dict[str, str] = {}
    never: dict[str, str] = {}
    known: dict[
        str, tuple[Mapping[str, str], str]
    ] = {}  # steps that differ only in their command are checked once
    for step in definition.steps:
        alike = repr(step.spec.model_copy(update={"name": "", "command": ""}))
        if alike not in known:
            known[alike] = _check(actor, tenant, cluster, step.spec)
        found, why = known[alike]
        problems |= {
            f"steps.{step.name}.{field}" if field else f"steps.{step.name}": text
            for field, text in found.items()
        }
        if why:
            never[step.name] = why
    problems |= _problems_of_files(cluster, definition.steps) | _problems_of_jobs(
        tenant, cluster, definition.steps
    )
    return Preview(problems, never)


def _check(actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> tuple[Mapping[str, str], str]:
    """Returns what is wrong with a specification by field, and why its job could never run."""
    try:
        generation_ids = check_only(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
        never = why_never(
            actor=actor, tenant=tenant, cluster=cluster, spec=spec, generation_ids=generation_ids
        )
    except SpecError as error:
        return error.problems, ""
    except Refused as error:
        return {error.field or "": error.message}, ""
    return {}, never


def _problems_of_files(cluster: Cluster, steps: Sequence[Step]) -> dict[str, str]:
    reading = [step for step in steps if any(need.files for need in step.needs)]
    why = why_no_files(cluster) if reading else ""
    return {f"steps.{step.name}.needs": why for step in reading} if why else {}


def _problems_of_jobs(tenant: Tenant, cluster: Cluster, steps: Sequence[Step]) -> dict[str, str]:
    wanted = {need.job for step in steps for need in step.needs if need.job}
    jobs = Job.objects.filter(tenant=tenant, cluster=cluster, kind=Job.Kind.TRAINING, pk__in=wanted)
    there = set(jobs.values_list("pk", flat=True)) if wanted else set()
    return {
        f"steps.{step.name}.needs": f"{need.label} is no job of {tenant.name} in {cluster.name}"
        for step in steps
        for need in step.needs
        if need.job and need.job not in there
    }
