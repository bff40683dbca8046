"""Actions of users on pipelines: create, cancel, and run steps again. The controller
(scheduling/pipelines/controller.py) then submits and cancels the jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from django.db import IntegrityError, transaction

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership, Tenant, User
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_pipeline
from scheduling.jobs.code_from_git import with_code_fetched
from scheduling.jobs.drafts import forget_draft
from scheduling.jobs.later import check_later, require_code, why_never
from scheduling.models import Cluster, Job, JobStorage, Pipeline, PipelineStep, StepNeed
from scheduling.models.ownership import require_changeable
from scheduling.pipelines.definition import Definition, Need, Step
from scheduling.pipelines.inputs import why_no_files
from scheduling.spec.job_spec import JobSpec, SpecError

State = PipelineStep.State


def create_pipeline(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    definition: Definition,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Pipeline:
    """Creates a pipeline owned by `actor` in `tenant`. Its jobs are submitted later, each once what it needs has ended.
    If `request_key` was used before, returns the earlier pipeline. The draft with this key is deleted.

    Raises NotAllowed unless the actor is a member of the tenant, and Refused if the tenant or the cluster accepts no
    jobs. Raises SpecError, by step and field, if the cluster does not accept a step, or if a step needs a job that is
    not one of the team's jobs in this cluster. If `even_if_never` is False, also raises Refused if a step could never
    run.
    """
    fetched = replace(definition, steps=_with_code(actor, tenant, definition.steps))
    return _create(actor, tenant, cluster, fetched, request_key, even_if_never=even_if_never)


def _with_code(actor: User, tenant: Tenant, steps: Sequence[Step]) -> list[Step]:
    """Returns the steps with the code of their repositories. Fetches each repository once, before any transaction."""
    known: dict[str, JobSpec] = {}
    found = []
    for step in steps:
        spec = step.spec
        if spec.code is not None and spec.code.is_unfetched:
            key = repr(spec.code)
            if key not in known:
                try:
                    known[key] = with_code_fetched(actor=actor, tenant=tenant, spec=spec)
                except SpecError as error:
                    raise _of_step(step.name, error) from None
            spec = spec.model_copy(update={"code": known[key].code})
        found.append(replace(step, spec=spec))
    return found


@transaction.atomic(durable=True)
def _create(
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    definition: Definition,
    request_key: str | None,
    *,
    even_if_never: bool,
) -> Pipeline:
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may submit jobs there.")
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it accepts no new jobs.", "tenant")
    if cluster.detached_at:
        raise Refused(f"{cluster.name} is detached; it accepts no jobs.", "cluster")
    for step in definition.steps:
        try:
            _check_step(actor, tenant, cluster, step, even_if_never=even_if_never)
        except SpecError as error:
            raise _of_step(step.name, error) from None
    jobs = _needed_jobs(tenant, cluster, definition.steps)
    forget_draft(actor, request_key)
    counts = {State.PENDING.value: len(definition.steps)}
    pipeline = Pipeline(
        tenant=tenant,
        owner=actor,
        cluster=cluster,
        name=definition.name,
        counts=counts,
        request_key=request_key,
    )
    try:
        with transaction.atomic():
            pipeline.save(force_insert=True)
    except IntegrityError:
        if request_key is None:
            raise
        return Pipeline.objects.get(owner=actor, request_key=request_key)
    steps = PipelineStep.objects.bulk_create(
        PipelineStep(pipeline=pipeline, index=index, name=step.name, spec=step.spec.to_dict())
        for index, step in enumerate(definition.steps)
    )
    by_name = {step.name: step for step in steps}
    StepNeed.objects.bulk_create(
        StepNeed(
            step=by_name[step.name],
            on=by_name[need.step] if need.step else None,
            job=jobs[need.job] if need.job else None,
            when=need.when,
            files=need.files,
        )
        for step in definition.steps
        for need in step.needs
    )
    _tell(actor, "pipeline.create", pipeline, after={"steps": len(steps)})
    return pipeline


@transaction.atomic(durable=True)
def cancel_pipeline(*, actor: User, pipeline: Pipeline) -> Pipeline:
    """Cancels the pipeline: no more steps are submitted, and those that wait or run are cancelled. Does nothing if the
    pipeline is cancelled already or has ended."""
    pipeline = _lock_changeable(actor, pipeline)
    if pipeline.ended_at is None and pipeline.state != Pipeline.State.CANCELLED:
        cancel(actor, pipeline)
    return pipeline


@transaction.atomic(durable=True)
def run_again(*, actor: User, pipeline: Pipeline, step: str = "") -> Pipeline:
    """Runs steps of an ended pipeline again, as new jobs. All other steps keep their results.

    - `step`: the name of the step to begin with; it and all steps that need it run again. If empty, the steps run again
      that failed or were cancelled, with all steps that need them.

    Whether skipped steps run is decided again, so that steps also run that only a cancelled pipeline kept from running.

    Raises Refused if the pipeline has not ended, has no such step, or if nothing has failed or was cancelled.
    Also raises Refused if code or files that the steps need have been deleted.
    """
    pipeline = _lock_changeable(actor, pipeline)
    if pipeline.ended_at is None:
        raise Refused("The pipeline has not ended. Wait for its end, or cancel it first.")
    steps = list(pipeline.steps.all())
    if step:
        begin = {one.pk for one in steps if one.name == step}
        if not begin:
            raise Refused(f"{step} is no step of this pipeline.", "step")
    elif pipeline.state == Pipeline.State.SUCCEEDED:
        begin = set()  # what was skipped there was not wanted
    else:
        begin = {one.pk for one in steps if one.state != State.SUCCEEDED}
    if not begin:
        raise Refused("No step of this pipeline has failed. Choose the step to begin with.", "step")
    begin |= {one.pk for one in steps if one.state == State.SKIPPED}
    needs = list(StepNeed.objects.filter(step__pipeline=pipeline).select_related("on", "job"))
    again = _with_dependants(begin, needs)
    _check_kept(pipeline, [one for one in steps if one.pk in again], needs, again)
    PipelineStep.objects.filter(pk__in=again).update(state=State.PENDING, job=None, reason="")
    StepNeed.objects.filter(step__in=again, on__isnull=False).update(job=None)
    pipeline.state, pipeline.ended_at, pipeline.cancelled_by = Pipeline.State.RUNNING, None, None
    pipeline.counts = counts_of(pipeline)
    pipeline.save(update_fields=["state", "ended_at", "cancelled_by", "counts"])
    _tell(actor, "pipeline.run_again", pipeline, after={"steps": [s.name for s in steps if s.pk in again]})
    return pipeline


def cancel(actor: User | None, pipeline: Pipeline) -> None:
    """Cancels a pipeline, within the transaction of a caller that has locked the pipeline's row.

    The controller then cancels the jobs. `actor` None means that Fairlot cancels the pipeline.
    """
    pending = pipeline.steps.filter(state=State.PENDING)
    pending.update(state=State.SKIPPED, reason="the pipeline was cancelled")
    pipeline.state, pipeline.cancelled_by, pipeline.trouble = Pipeline.State.CANCELLED, actor, ""
    pipeline.counts = counts_of(pipeline)
    if State.ACTIVE not in pipeline.counts:
        pipeline.ended_at = now_from_database()
    pipeline.save(update_fields=["state", "cancelled_by", "trouble", "counts", "ended_at"])
    _tell(actor, "pipeline.cancel", pipeline)


def counts_of(pipeline: Pipeline) -> dict[str, int]:
    """Returns the number of the pipeline's steps in each state, without states that have none."""
    found = Counter(pipeline.steps.order_by().values_list("state", flat=True))
    return dict(sorted(found.items()))


def definition_of(pipeline: Pipeline) -> Definition:
    """Returns the definition of a stored pipeline, for its page and to start another one with it."""
    return Definition(pipeline.name, [step_of(step) for step in pipeline.steps.prefetch_related("needs__on")])


def step_of(step: PipelineStep) -> Step:
    needs = [
        Need(one.on.name, None, one.when, one.files) if one.on else Need("", one.job_id, one.when, one.files)
        for one in step.needs.all()
    ]
    return Step(step.name, JobSpec.stored(step.spec), needs)


def _with_dependants(begin: Collection[int], needs: Sequence[StepNeed]) -> set[int]:
    """Returns the ids of these steps, and of all steps that need one of them, also through others."""
    found, new = set(begin), set(begin)
    while new:
        new = {need.step_id for need in needs if need.on_id in new} - found
        found |= new
    return found


def _check_kept(
    pipeline: Pipeline, steps: Sequence[PipelineStep], needs: Sequence[StepNeed], again: Collection[int]
) -> None:
    """Raises Refused if code or files that these steps need have been deleted. What is left stays until the pipeline
    ends."""
    for step in steps:
        require_code(
            actor=pipeline.owner,
            tenant=pipeline.tenant,
            cluster=pipeline.cluster,
            spec=JobSpec.stored(step.spec),
            refused=f"The step {step.name} cannot run again",
            instead="Clone the pipeline.",
        )
    on = {step.pk: step.job_id for step in pipeline.steps.all()}
    for need in needs:
        kept = on[need.on_id] if need.on_id else need.job_id
        if need.files and need.step_id in again and need.on_id not in again and kept and _has_no_files(kept):
            where = f"Begin with {need.label}." if need.on_id else "Clone the pipeline."
            raise Refused(f"The files of {need.label} have been deleted. {where}", "step")


def _has_no_files(job_id: int) -> bool:
    """Returns whether the files of a job are deleted or will be. Until the transaction ends, nobody else can ask for
    their deletion."""
    if Job.objects.filter(pk=job_id, files_removed_at__isnull=False).exists():
        return True
    storage, _ = JobStorage.objects.select_for_update().get_or_create(job_id=job_id)
    return storage.deletion_wanted_at is not None


def _check_step(actor: User, tenant: Tenant, cluster: Cluster, step: Step, *, even_if_never: bool) -> None:
    spec = step.spec
    if any(need.files for need in step.needs) and (why := why_no_files(cluster)):
        raise SpecError({"needs": why})
    generation_ids = check_later(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
    if not even_if_never and (
        never := why_never(
            actor=actor, tenant=tenant, cluster=cluster, spec=spec, generation_ids=generation_ids
        )
    ):
        raise Refused(f"{step.name}: {never}", field="even_if_never")


def _needed_jobs(tenant: Tenant, cluster: Cluster, steps: Sequence[Step]) -> dict[int, Job]:
    """Returns the jobs that the steps need, by id. Raises SpecError, by step, unless they are jobs of the team in this
    cluster that may end by themselves, with the files that are needed."""
    ids = {need.job for step in steps for need in step.needs if need.job}
    theirs = Job.objects.filter(tenant=tenant, cluster=cluster, kind=Job.Kind.TRAINING).defer("spec")
    found = theirs.in_bulk(sorted(ids))
    for step in steps:
        for need in step.needs:
            if need.job is None:
                continue
            if need.job not in found:
                where = f"is no job of {tenant.name} in {cluster.name}"
                raise _of_step(step.name, SpecError({"needs": f"{need.label} {where}"}))
            if need.files and _has_no_files(need.job):
                why = f"the files of {need.label} have been deleted; write “files: false” if they are not needed"
                raise _of_step(step.name, SpecError({"needs": why}))
    return found


def _of_step(name: str, error: SpecError) -> SpecError:
    return SpecError({f"steps.{name}.{field}": text for field, text in error.problems.items()})


def _lock_changeable(actor: User, pipeline: Pipeline) -> Pipeline:
    require_changeable(actor, pipeline, "change this pipeline")
    locked = Pipeline.objects.select_for_update(of=("self",)).select_related("tenant", "owner", "cluster")
    return locked.get(pk=pipeline.pk)


def _tell(actor: User | None, verb: str, pipeline: Pipeline, **changes: dict[str, Any]) -> None:
    audit.record(actor=actor, verb=verb, target=pipeline, tenant=pipeline.tenant, **changes)
    pubsub.publish(f"jobs:{pipeline.tenant_id}")
    wake_pipeline(pipeline.pk)
