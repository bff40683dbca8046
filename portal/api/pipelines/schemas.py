"""Request and response schemas of the endpoints for pipelines."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Figure, Flag, Line
from portal.api.pages import ListFilters

DEFINITION: dict[str, Any] = {
    "name": "digits",
    "defaults": {"generations": ["A100"]},
    "steps": {
        "prepare": {"command": "python prepare.py"},
        "train": {
            "needs": ["prepare"],
            "command": "python train.py --data $FAIRLOT_INPUT_PREPARE/checkpoint",
        },
        "tell": {"needs": [{"step": "train", "when": "failure", "files": False}], "command": "./tell"},
    },
}
EXAMPLE: dict[str, Any] = {"pipeline": DEFINITION, "team": "your-team"}
# scheduling/pipelines/definition.py checks the content of a definition.
PipelineState = Literal["running", "succeeded", "failed", "cancelled"]
StepState = Literal["pending", "active", "succeeded", "failed", "cancelled", "skipped"]


class NewPipeline(Schema):
    """A pipeline to create: its definition, as a mapping or as YAML text, or one job with the jobs that it needs.

    `team` may be left out if the caller is a member of only one team, and `cluster` if only one cluster is attached.
    """

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    pipeline: dict[str, Any] | str | None = Field(
        None,
        description="The definition: `name`, `steps` (a mapping of names to the fields of a job specification and "
        "`needs`) and `defaults` (fields that all steps have).",
    )
    spec: dict[str, Any] | str | None = Field(
        None, description="In place of `pipeline`: the specification of one job, which `needs` other jobs."
    )
    needs: list[Any] = Field(
        [],
        max_length=50,
        description="With `spec`: ids of jobs of the same team, or mappings such as "
        '`{"job": 12, "when": "failure", "files": false}`. `when` is `success` (the default), `failure` or `always`.',
    )
    team: Line = Field("", description="Slug of the team that the jobs are billed to.")
    cluster: Line = Field("", description="Name of the cluster on which to run.")
    even_if_never: Flag = Field(
        False,
        description="Whether to accept a step even if it can never run with the current nodes and limits. If false, "
        "such a pipeline is refused.",
    )


class RunAgain(Schema):
    step: Line = Field(
        "",
        description="Name of the step to begin with. Empty runs the failed and cancelled steps again, and all steps "
        "that need them.",
    )


class StepNeed(Schema):
    """What a step needs: the end of another step, or of a job outside the pipeline."""

    step: str | None = Field(description="Name of the step; null if a job is needed.")
    job: int | None = Field(description="Id of the job; null if a step is needed.")
    when: Literal["success", "failure", "always"]
    files: bool = Field(description="Whether the step may read the files of what it needs.")


class PipelineStep(Schema):
    """A step of a pipeline. `job_id` is its latest job; null before the first one is submitted."""

    name: str
    state: StepState
    reason: str = Field(description="Why the step was skipped; empty otherwise.")
    needs: list[StepNeed]
    attempts: int = Field(description="Number of jobs that were submitted for the step.")
    job_id: int | None
    gpus: int = Field(
        description="GPUs of all its workers; for an elastic step the least with which it runs."
    )
    waited_seconds: float | None = Field(
        description="How long the latest job waited for its first start; null before it is submitted."
    )
    held_seconds: float | None = Field(
        description="How long the latest job has held GPUs; null before its first start."
    )
    gpu_hours: float = Field(description="What all jobs of the step have used until now.")
    costs: dict[str, Figure] = Field(description="What this cost, about, by currency.")
    expected_end: datetime | None = Field(
        description="When the step is expected to end; null if it has ended, or if that is unknown."
    )


class Pipeline(Schema):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: PipelineState
    counts: dict[str, int] = Field(description="Number of steps by state. States without steps are left out.")
    trouble: str = Field(
        description="Why a step cannot be submitted at present; empty if nothing prevents it."
    )
    created_at: datetime
    ended_at: datetime | None


class PipelineInFull(Pipeline):
    steps: list[PipelineStep] = Field(description="The steps in the order in which they were written.")
    gpu_hours: float = Field(description="What all jobs of the pipeline have used until now.")
    costs: dict[str, Figure] = Field(description="What this cost, about, by currency.")
    expected_end: datetime | None = Field(
        description="When the last step is expected to end, if later steps need not wait for GPUs; null if that is "
        "unknown."
    )
    definition: str = Field(description="The definition as YAML, to create the same pipeline again.")


class PipelineFilters(ListFilters):
    state: PipelineState | None = None


class PipelinePage(Schema):
    """A page of pipelines, newest first.

    To get the next page, with older pipelines, call the endpoint again with the parameter `before` set to `next`, which
    is null on the last page.
    """

    items: list[Pipeline]
    next: int | None
