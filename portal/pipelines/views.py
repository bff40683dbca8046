"""The page of a pipeline, and its actions. The list is in portal/pipelines/listing.py, the form in
portal/pipelines/editing.py."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.failure import cause_of
from portal.pipelines.detail import steps_of, work_of
from portal.pipelines.graph import draw
from portal.pipelines.listing import label_of
from portal.user_request import UserRequest
from scheduling.models import Pipeline, PipelineStep, StepNeed
from scheduling.pipelines.actions import cancel_pipeline, definition_of, run_again

STEP_STATES = {
    "pending": ("warn", "clock"),
    "active": ("info", "play"),
    "succeeded": ("good", "check-circle"),
    "failed": ("bad", "x-circle"),
    "cancelled": ("muted", "slash"),
    "skipped": ("muted", "slash"),
}
WHEN = {"success": "", "failure": "if it fails", "always": "however it ends"}


@require_safe
def pipeline(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a pipeline: its graph, its steps with their states, and its definition."""
    shown = visible_pipeline(request, pk)
    steps = steps_of(shown)
    work = work_of(shown, steps, request.user)
    outside = {need.job_id for step in steps for need in step.needs.all() if need.on_id is None}
    links = {job_id: reverse("job", args=[job_id]) for job_id in outside if job_id}
    ended = shown.ended_at is not None
    context = {
        "pipeline": shown,
        "chip": label_of(shown),
        "counts": _counts(shown),
        "graph": draw(steps, links, {key: one.held_seconds for key, one in work.steps.items()}),
        "work": work,
        "rows": [
            {
                "step": step,
                "chip": _chip_of_step(step),
                "needs": [_need(need) for need in step.needs.all()],
                "cause": _cause(shown, step),
                "work": work.steps[step.pk],
            }
            for step in steps
        ],
        "yaml": definition_of(shown).to_yaml(),
        "may_change": Pipeline.objects.changeable_by(request.user).filter(pk=pk).exists(),
        "may_run_failed": ended and shown.state != Pipeline.State.SUCCEEDED,
    }
    return render_page(request, "pipelines/pipeline.html", context)


def _cause(shown: Pipeline, step: PipelineStep) -> str:
    """Returns in one line why a step failed, or was skipped."""
    if step.state != PipelineStep.State.FAILED or step.job is None:
        return step.reason
    # A step's job has its cluster and specification, so neither is read for each step.
    step.job.cluster, step.job.spec = shown.cluster, step.spec
    return cause_of(step.job)


@require_POST
def cancel(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_pipeline(request, pk)
    tell(
        request,
        lambda: cancel_pipeline(actor=request.user, pipeline=shown),
        f"The pipeline {shown.name} has been cancelled. Its running jobs end within their grace period.",
    )
    return redirect("pipeline", pk=pk)


@require_POST
def again(request: UserRequest, pk: int) -> HttpResponse:
    """Runs the failed steps again, or the posted `step` and all that need it."""
    shown, step = visible_pipeline(request, pk), request.POST.get("step", "")
    tell(
        request,
        lambda: run_again(actor=request.user, pipeline=shown, step=step),
        f"{shown.name} runs again from {step}." if step else f"The failed steps of {shown.name} run again.",
    )
    return redirect("pipeline", pk=pk)


def visible_pipeline(request: UserRequest, pk: int) -> Pipeline:
    """Returns the pipeline with this key. Raises Http404 if the user may not see the pipeline."""
    seen = Pipeline.objects.visible_to(request.user).select_related(
        "tenant", "owner", "cluster", "cancelled_by"
    )
    return get_object_or_404(seen, pk=pk)


def _need(need: StepNeed) -> tuple[str, str, str]:
    """Returns the label of what is needed, where it is shown, and how it must end in words."""
    link = f"#step-{need.on.name}" if need.on else reverse("job", args=[need.job_id])
    files = "" if need.files else "without its files"
    return need.label, link, ", ".join(filter(None, (WHEN[need.when], files)))


def _chip_of_step(step: PipelineStep) -> tuple[str, str, str]:
    tone, icon = STEP_STATES[step.state]
    return step.get_state_display(), tone, icon


def _counts(shown: Pipeline) -> list[tuple[str, int]]:
    """Returns (label, number of steps) for each state that steps have."""
    return [(state.label, shown.counts[state]) for state in PipelineStep.State if state in shown.counts]
