"""Endpoints for pipelines: list, create, read, cancel, and run again."""

from __future__ import annotations

from typing import Any

from ninja import Query, Router
from ninja.responses import Status

from accounting.models import User
from portal.api.fields import AskedKey, IdempotencyKey, PageSize
from portal.api.jobs.endpoints import place_of, read_spec
from portal.api.pages import page_of
from portal.api.pipelines import schemas
from portal.api.seen import seen_or_404
from portal.pipelines.detail import StepWork, steps_of, work_of
from portal.pipelines.listing import PIPELINES
from portal.user_request import ApiRequest
from scheduling.models import Pipeline, PipelineStep
from scheduling.pipelines.actions import cancel_pipeline, create_pipeline, definition_of, run_again
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import SpecError

router = Router(tags=["Pipelines"])


def visible_pipeline(request: ApiRequest, pipeline_id: int) -> Pipeline:
    """Returns the pipeline with this id. Raises NotSeen if there is none or the caller may not see it."""
    seen = Pipeline.objects.visible_to(request.auth).select_related("tenant", "owner", "cluster")
    return seen_or_404(seen, "pipeline", pipeline_id)


@router.get("/pipelines", response=schemas.PipelinePage, url_name="pipelines")
def list_pipelines(
    request: ApiRequest,
    filters: Query[schemas.PipelineFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the pipelines of the caller's teams, newest first or in the order of `sort`."""
    found, following = page_of(PIPELINES, request.auth, filters, before, limit, state=filters.state)
    return {"items": [show(pipeline) for pipeline in found], "next": following}


@router.post("/pipelines", response={201: schemas.PipelineInFull}, url_name="pipelines")
def create(
    request: ApiRequest,
    new: schemas.NewPipeline,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Creates a pipeline that the caller owns. Each job is submitted once what it needs has ended.

    A call that repeats an Idempotency-Key returns the pipeline of the first call.
    """
    definition = _definition(new)
    tenant, cluster = place_of(request.auth, new)
    pipeline = create_pipeline(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        definition=definition,
        request_key=idempotency_key or None,
        even_if_never=new.even_if_never,
    )
    return Status(201, show_in_full(pipeline, request.auth))


@router.get("/pipelines/{int:pipeline_id}", response=schemas.PipelineInFull, url_name="pipeline")
def get_pipeline(request: ApiRequest, pipeline_id: int) -> dict[str, Any]:
    """Returns a pipeline with its steps and its definition."""
    return show_in_full(visible_pipeline(request, pipeline_id), request.auth)


@router.post("/pipelines/{int:pipeline_id}/cancel", response=schemas.Pipeline, url_name="pipeline_cancel")
def cancel(request: ApiRequest, pipeline_id: int) -> dict[str, Any]:
    """Cancels a pipeline and all its jobs. Cancelling a pipeline that has ended has no effect."""
    return show(cancel_pipeline(actor=request.auth, pipeline=visible_pipeline(request, pipeline_id)))


@router.post(
    "/pipelines/{int:pipeline_id}/run-again", response=schemas.Pipeline, url_name="pipeline_run_again"
)
def again(request: ApiRequest, pipeline_id: int, asked: schemas.RunAgain) -> dict[str, Any]:
    """Runs steps of an ended pipeline again, as new jobs; all other steps keep their results.

    Refused (409) while the pipeline runs, and without `step` if no step has failed.
    """
    pipeline = visible_pipeline(request, pipeline_id)
    return show(run_again(actor=request.auth, pipeline=pipeline, step=asked.step))


def _definition(new: schemas.NewPipeline) -> Definition:
    if (new.pipeline is None) == (new.spec is None):
        raise SpecError({"pipeline": "give either pipeline, or spec with needs"})
    if new.spec is not None:
        return Definition.of_job(read_spec(new.spec), new.needs)
    if new.needs:
        raise SpecError({"needs": "is only for spec; in a pipeline each step has its needs"})
    return (
        Definition.from_yaml(new.pipeline)
        if isinstance(new.pipeline, str)
        else Definition.parse(new.pipeline)
    )


def show(pipeline: Pipeline) -> dict[str, Any]:
    same = ("id", "name", "state", "counts", "trouble", "created_at", "ended_at")
    return {name: getattr(pipeline, name) for name in same} | {
        "team": pipeline.tenant.slug,
        "owner": pipeline.owner.get_username(),
        "cluster": pipeline.cluster.name,
    }


def show_in_full(pipeline: Pipeline, user: User) -> dict[str, Any]:
    steps = steps_of(pipeline)
    work = work_of(pipeline, steps, user)
    return show(pipeline) | {
        "steps": [show_step(step, work.steps[step.pk]) for step in steps],
        "gpu_hours": work.use.gpu_hours,
        "costs": work.use.costs,
        "expected_end": work.ends.whole,
        "definition": definition_of(pipeline).to_yaml(),
    }


def show_step(step: PipelineStep, work: StepWork) -> dict[str, Any]:
    same = ("name", "state", "reason", "attempts", "job_id")
    needs = [
        {
            "step": need.on.name if need.on else None,
            "job": None if need.on else need.job_id,
            "when": need.when,
            "files": need.files,
        }
        for need in step.needs.all()
    ]
    return {name: getattr(step, name) for name in same} | {
        "needs": needs,
        "gpus": work.gpus,
        "waited_seconds": work.waited_seconds,
        "held_seconds": work.held_seconds,
        "gpu_hours": work.use.gpu_hours,
        "costs": work.use.costs,
        "expected_end": work.ends,
    }
