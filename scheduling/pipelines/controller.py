"""The controller of pipelines: submits the jobs of steps once what they need has ended, skips steps whose needs can no
longer be met, and records how steps ended.

Any number of workers may take steps at any time, and may die in the middle of one. The lock on the pipeline's row makes
steps follow each other, and a job is stored in the same transaction as the state of its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from django.db import transaction
from django.db.models import QuerySet

from accounting.core.bulk import update_rows
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from scheduling.core import pubsub
from scheduling.core.enqueue import want_rounds
from scheduling.core.locks import lock_schedule
from scheduling.jobs.actions import cancel_waiting_within, cancel_within
from scheduling.jobs.submitting import submit_each_stored
from scheduling.models import Cluster, Job, Pipeline, PipelineStep, StepNeed
from scheduling.models.event_codes import EventCode, Message
from scheduling.pipelines.actions import counts_of
from scheduling.spec.job_spec import JobSpec, SpecError

State, When = PipelineStep.State, StepNeed.When
ENDS = {str(state): str(state) for state in Job.ENDED}


class Verdict(Enum):
    """Whether a need is met, may still be met, or can no longer be met."""

    MET = "met"
    OPEN = "open"
    LOST = "lost"


def pipelines_to_step() -> QuerySet[Pipeline]:
    """Returns the pipelines that may need a step of the controller."""
    return Pipeline.objects.unfinished()


def verdict(when: str, state: str) -> Verdict:
    """Returns whether a need is met. `state` is a state of the needed step, or of the needed job."""
    ended = state in ENDS or state == State.SKIPPED
    if not ended:
        return Verdict.OPEN
    wanted = {When.SUCCESS: state == State.SUCCEEDED, When.FAILURE: state == State.FAILED, When.ALWAYS: True}
    return Verdict.MET if wanted[When(when)] else Verdict.LOST


@transaction.atomic(durable=True)
def step_pipeline(*, pipeline_id: int) -> None:
    """Records the steps that have ended, then skips, submits or cancels those whose turn it is."""
    locked = Pipeline.objects.select_for_update(of=("self",)).select_related("tenant", "owner", "cluster")
    pipeline = locked.filter(pk=pipeline_id, ended_at=None).first()
    if pipeline is None:
        return
    before, pipeline.trouble = pipeline.trouble, ""
    steps = {step.pk: step for step in pipeline.steps.select_related("job").defer("job__spec")}
    needs: dict[int, list[StepNeed]] = {pk: [] for pk in steps}
    for need in StepNeed.objects.filter(step__pipeline=pipeline).select_related("job").defer("job__spec"):
        needs[need.step_id].append(need)
    moved = _settle(list(steps.values()))
    if pipeline.state == Pipeline.State.CANCELLED:
        _cancel_jobs(pipeline)
    else:
        moved += _advance(pipeline, steps, needs)
    if moved or pipeline.trouble != before:
        _note(pipeline)


def _settle(steps: Sequence[PipelineStep]) -> int:
    """Records the steps whose jobs have ended. Returns their number."""
    ended = [step for step in steps if step.state == State.ACTIVE and step.job and step.job.has_ended]
    for step in ended:
        if step.job is not None:
            step.state = ENDS[step.job.state]
    update_rows(ended, ["state"])
    return len(ended)


def _advance(
    pipeline: Pipeline, steps: Mapping[int, PipelineStep], needs: Mapping[int, Sequence[StepNeed]]
) -> int:
    """Skips the steps that can no longer run, and submits those whose needs are met. Returns their number.

    Stores on the pipeline why a step was refused, if one was.
    """
    pending = [step for step in steps.values() if step.state == State.PENDING]
    skipped: list[PipelineStep] = []
    while new := [step for step in pending if step.state == State.PENDING and _lost(needs[step.pk], steps)]:
        for step in new:
            step.state, step.reason = State.SKIPPED, _lost(needs[step.pk], steps)
        skipped += new
    update_rows(skipped, ["state", "reason"])
    ready = [
        step
        for step in pending
        if step.state == State.PENDING
        and all(verdict(need.when, _state(need, steps)) is Verdict.MET for need in needs[step.pk])
    ]
    submitted = [step for step in ready if _submit(pipeline, step, needs[step.pk], steps)]
    return len(skipped) + len(submitted)


def _state(need: StepNeed, steps: Mapping[int, PipelineStep]) -> str:
    if need.on_id is not None:
        return steps[need.on_id].state
    return need.job.state if need.job else ""


def _lost(needs: Sequence[StepNeed], steps: Mapping[int, PipelineStep]) -> str:
    """Says which need can no longer be met, in words for people. Returns "" if each of them may be met."""
    for need in needs:
        state = _state(need, steps)
        if verdict(need.when, state) is Verdict.LOST:
            what = steps[need.on_id].name if need.on_id else f"job {need.job_id}"
            wanted = "its success" if need.when == When.SUCCESS else "its failure"
            verb = {State.SKIPPED: "was skipped", State.CANCELLED: "was cancelled"}.get(State(state), state)
            return f"{what} {verb}, and this step needs {wanted}"
    return ""


def _submit(
    pipeline: Pipeline,
    step: PipelineStep,
    needs: Sequence[StepNeed],
    steps: Mapping[int, PipelineStep],
) -> bool:
    """Submits the job of a step. Returns whether it was accepted."""
    try:
        [outcome] = submit_each_stored(
            actor=pipeline.owner,
            tenant=pipeline.tenant,
            cluster=pipeline.cluster,
            specs=[JobSpec.stored(step.spec)],
            fields=[{"pipeline": pipeline, "step_index": step.index}],
            why=Message.of(EventCode.SUBMITTED_BY_PIPELINE, pipeline=pipeline.name, step=step.name),
        )
    except (NotAllowed, Refused, SpecError) as error:
        outcome = error if isinstance(error, Refused | SpecError) else Refused(str(error))
    if not isinstance(outcome, Job):
        pipeline.trouble = pipeline.trouble or f"{step.name}: {outcome}"
        return False
    step.state, step.job = State.ACTIVE, outcome
    step.attempts += 1
    update_rows([step], ["state", "job", "attempts"])
    for need in needs:
        if need.on_id is not None:
            need.job = steps[need.on_id].job
    update_rows([need for need in needs if need.on_id is not None], ["job"])
    return True


def _cancel_jobs(pipeline: Pipeline) -> None:
    """Cancels the jobs of the pipeline that wait or run."""
    left = Job.objects.filter(pipeline=pipeline).unfinished().exclude(state=Job.State.CANCELLING)
    if not left.exists():
        return
    lock_schedule(pipeline.cluster_id)
    jobs = list(left.select_related("tenant").defer("spec").order_by("pk"))
    user = pipeline.cancelled_by.get_username() if pipeline.cancelled_by else None
    why = Message.of(EventCode.PIPELINE_CANCELLED, pipeline=pipeline.name, user=user)
    if waiting := [job for job in jobs if job.state in Job.WAITING]:
        cancel_waiting_within(actor=None, jobs=waiting, why=why)
        want_rounds(Cluster.objects.filter(pk=pipeline.cluster_id))
    for job in jobs:
        if job.state in Job.HOLDING:
            cancel_within(actor=None, job=job, why=why)


def _note(pipeline: Pipeline) -> None:
    """Stores what was changed. Ends the pipeline if all its steps have ended."""
    pipeline.counts = counts_of(pipeline)
    if not pipeline.counts.keys() & set(PipelineStep.UNFINISHED):
        pipeline.ended_at = now_from_database()
        if pipeline.state == Pipeline.State.RUNNING:
            bad = pipeline.counts.keys() & {State.FAILED, State.CANCELLED}
            pipeline.state = Pipeline.State.FAILED if bad else Pipeline.State.SUCCEEDED
    pipeline.save(update_fields=["counts", "ended_at", "state", "trouble"])
    pubsub.publish(f"jobs:{pipeline.tenant_id}")
