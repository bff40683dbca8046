"""Request and response schemas of the endpoints for sweeps."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Figure, Flag, Line, Number, Whole
from portal.api.jobs.schemas import NewJob
from portal.api.pages import ListFilters

EXAMPLE: dict[str, Any] = {
    "spec": {"name": "tune", "command": "python train.py --lr {lr} --depth {depth}", "generations": ["A100"]},
    "team": "your-team",
    "parameters": {"kind": "grid", "grid": {"lr": [0.1, 0.01, 0.001], "depth": [2, 4]}},
    "at_once": 4,
    "metric": "loss",
    "goal": "min",
    "stop_at": 0.05,
}
# scheduling/sweeps/parameters.py checks the content of parameters.
SweepState = Literal["running", "finished", "stopped", "cancelled"]
MemberState = Literal["pending", "active", "succeeded", "failed", "cancelled", "stopped", "skipped"]


class SweepParameters(Schema):
    """The members of a sweep, in one of four forms."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["grid", "random", "list", "array"] = Field(
        description="`grid` runs each combination of values, `random` draws values, `list` has one row for each "
        "member, and `array` has members that differ only in their index."
    )
    grid: dict[str, list[Any]] = Field({}, description="Values by parameter, for `grid`.")
    random: dict[str, dict[str, Any] | str] = Field(
        {},
        description="Distributions by parameter, for `random`. Each is one of "
        '`{"distribution": "uniform", "low": 0, "high": 1}`, the same with `log_uniform` or `int`, and '
        '`{"distribution": "choice", "values": ["a", "b"]}`; or a text, such as `log_uniform(1e-5, 0.1)` or '
        "`choice(a, b)`.",
    )
    rows: list[dict[str, Any]] = Field(
        [],
        max_length=10_000,
        description="Values of each member, for `list`. All rows have the same parameters.",
    )
    count: Whole | None = Field(None, description="Number of members, for `random` and `array`.")
    seed: Whole | None = Field(
        None, description="Seed of `random`. The same seed draws the same values. Null draws a seed."
    )


class NewSweepPreview(Schema):
    """A sweep to preview: its job specification and its parameters."""

    model_config = ConfigDict(
        json_schema_extra={"example": {name: EXAMPLE[name] for name in ("spec", "parameters")}}
    )

    spec: dict[str, Any] | str
    parameters: SweepParameters
    team: Line = Field("", description="Slug of the team that the sweep would be billed to.")
    cluster: Line = Field("", description="Name of the cluster on which it would run.")
    at_once: Whole | None = Field(None, description="Most members that would wait or run at the same time.")


class NewSweep(NewJob):
    """A sweep to create: a job specification, and the parameters in which its members differ."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    parameters: SweepParameters
    at_once: Whole | None = Field(
        None, description="Most members that wait or run at the same time; null for no limit but the team's."
    )
    metric: Line = Field(
        "", description="Metric by which members are compared. Programs print it as `name=value`."
    )
    goal: Literal["min", "max"] = Field("min", description="Whether lower or higher values are better.")
    stop_at: Number | None = Field(
        None,
        description="The whole sweep stops once a member that runs or has succeeded has this value of the metric or a "
        "better one.",
    )
    stop_cancels: Flag = Field(
        False, description="Whether the other members that wait or run are cancelled when the sweep stops."
    )
    median_after: Whole | None = Field(
        None,
        description="From this training step on, a running member stops early if its metric is worse than the median "
        "of the others at the same step; null for no early stop.",
    )


class SweepMember(Schema):
    """A member of a sweep. `job_id` is its latest job; null before the first one is submitted."""

    index: int
    state: MemberState
    parameters: dict[str, Any]
    metrics: dict[str, float] = Field(description="Last values that the latest job printed, after its end.")
    attempts: int = Field(description="Number of jobs that were submitted for the member.")
    job_id: int | None
    outdone_at: float | None = Field(
        description="Step at which the member was worse than the median of the others, so that it stopped early."
    )
    cause: str = Field(
        description="In one line why the latest job failed; empty for members that did not fail."
    )


class Sweep(Schema):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    state: SweepState
    size: int = Field(description="Number of members.")
    counts: dict[str, int] = Field(
        description="Number of members by state. States without members are left out."
    )
    at_once: int | None
    metric: str
    goal: str
    stop_at: float | None
    stop_cancels: bool
    median_after: int | None
    stopped_by: int | None = Field(description="Index of the member that met the stop rule.")
    trouble: str = Field(
        description="Why members cannot be submitted at present; empty if nothing prevents it."
    )
    created_at: datetime
    ended_at: datetime | None


class SweepInFull(Sweep):
    spec: dict[str, Any]
    parameters: dict[str, Any]
    names: list[str] = Field(description="Names of the parameters, in order.")
    metric_names: list[str] = Field(description="Names of the metrics that members have printed.")
    best: SweepMember | None = Field(description="Member with the best value of `metric`.")


class SweepFilters(ListFilters):
    state: SweepState | None = None


class SweepPage(Schema):
    """A page of sweeps, newest first.

    To get the next page, with older sweeps, call the endpoint again with the parameter `before` set to `next`, which is
    null on the last page.
    """

    items: list[Sweep]
    next: int | None


class SweepMemberFilters(Schema):
    state: MemberState | None = None
    format: Literal["json", "csv"] = "json"


class SweepMemberPage(Schema):
    """A page of members in the order of their index.

    To get the next page, call the endpoint again with the parameter `after` set to `next`, which is null on the last
    page.
    """

    items: list[SweepMember]
    next: int | None


class PreviewedSweepMember(Schema):
    parameters: dict[str, Any]
    name: str
    command: str


class SweepEstimate(Schema):
    """What all members of a sweep use and cost together if each runs for `hours`."""

    gpus_per_member: int
    at_once: int | None = Field(
        description="Most members that run at the same time; null if only limits and free GPUs bound them."
    )
    hours: float = Field(description="Assumed run time of each member.")
    basis: Literal["expected", "last_run", "an_hour"] = Field(
        description="Why it is assumed: the specification expects it, `last_run` took as long, or no run time is known."
    )
    assumption: str = Field(description="The same in words.")
    last_run: int | None = Field(
        description="Id of the team's latest job of this name, or of a sweep of this name, that succeeded."
    )
    gpu_hours: float
    cost: dict[str, Figure] = Field(description="Cost of all members at today's prices, by generation.")
    cost_per_hour: dict[str, Figure] = Field(description="Cost of one hour of one member, by generation.")
    currencies: dict[str, str] = Field(description="Currency of each cost, by generation.")


class SweepPreview(Schema):
    """What a sweep would submit: the number of members, the first five, and what all would cost."""

    size: int
    first: list[PreviewedSweepMember]
    notes: list[str] = Field(description="What is allowed but seldom meant, such as an unknown `{name}`.")
    estimate: SweepEstimate | None = Field(
        description="Null if the team or the cluster is left out and there are several of them."
    )
