"""Request and response schemas of the endpoints for idle GPUs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Figure, Flag, Line, Whole, Words
from portal.api.old_names import OldValues, WithOldNames, answered_too
from portal.api.versions import VERSION


class GpuUse(Schema):
    measured_until: datetime
    measure: Literal["gpu", "cpu"] = Field(
        description="`gpu`: utilisation of the GPUs. `cpu`: CPU time of the processes, used if the GPUs "
        "report no utilisation."
    )
    percent: float = Field(
        description="Utilisation at the last measurement. If `measure` is `gpu`: percent of the job's "
        "GPUs. If `measure` is `cpu`: percent of one CPU, so 200 means two full CPUs."
    )
    idle_since: datetime | None = Field(
        description="Time since which the job's GPUs are idle; null if they are in use."
    )
    idle_seconds: float = Field(
        description="Number of seconds since `idle_since` in which the job held GPUs and did not use them."
    )
    processless_since: datetime | None = Field(
        description="Time since which no process has used the job's GPUs. Null if a process uses them, or if unknown."
    )
    warned_at: datetime | None
    then: Literal["stop", "preemptible"] | None = Field(
        description="What happens after the warning: the job is stopped (`stop`) or becomes `preemptible`. "
        "Null if nothing happens."
    )
    acts_at: datetime | None = Field(
        description="Earliest time at which Fairlot stops the job or makes it preemptible (see `then`). If the "
        "job uses its GPUs before this time, neither happens."
    )
    snoozed_until: datetime | None
    snooze_reason: str
    snooze_at_most: datetime | None = Field(
        description="Latest time until which the rule can be snoozed for this job; null if the rule "
        "cannot be snoozed."
    )


class IdleJob(GpuUse):
    job: int
    name: str
    team: str
    owner: str
    cluster: str
    gpus: int
    generation: str


class IdleTeam(WithOldNames, Schema):
    """A team's idle GPU time, as the ledger has booked it, and its cost. Idle time is time in which allocated GPUs were
    not used.

    `processless_gpu_seconds` is the part of the idle time in which no process was observed on the GPUs.
    """

    team: str
    idle_gpu_seconds: Figure
    processless_gpu_seconds: Figure
    allocated_gpu_seconds: Figure
    held_gpu_seconds: Figure = answered_too("allocated_gpu_seconds")
    part: float = Field(description="Idle time as a fraction of the allocated time.")
    idle_cost: Figure = Field(
        description="Cost of the idle time: the cost of each hour times the idle fraction of this hour, "
        "summed over all hours."
    )
    cost: Figure = Field(description="Cost of all allocated time.")
    currency: str


class Snooze(Schema):
    until: AwareDatetime
    reason: Words


class NewIdleRule(Schema):
    team: Line = Field(
        "",
        description="Slug of a team. The rule also applies to the teams below this team that have no rule.",
    )
    cluster: Line = Field(
        "",
        description="Name of a cluster. On this cluster, the rule applies to each team without an idle rule, unless a "
        "team above it has one.",
    )
    action: Annotated[
        Literal["nothing", "warn", "preemptible", "stop"], OldValues((("only_idle", "preemptible"),))
    ]
    after_minutes: Whole
    grace_minutes: Whole = 30
    snooze_hours: Whole = Field(
        24, description="Longest time, in hours, for which owners may snooze the rule; 0 forbids snoozing."
    )
    services: Flag = Field(
        False,
        description="Whether owners are also warned about idle replicas of services. Idle replicas are never stopped.",
    )


class IdleRule(NewIdleRule):
    version: str = Field(description=VERSION)
    id: int


class IdleRuleEffect(Schema):
    """What an idle rule would do now to running jobs, if it replaced the rule for the same team or cluster."""

    running: int = Field(description="Number of running jobs that follow the rule.")
    idle: int = Field(description="Number of those with idle GPUs.")
    warned: int = Field(description="Number of those whose owners would be warned at once.")
    then: Literal["stop", "preemptible"] | None = Field(
        description="What happens after the warning to jobs that stay idle."
    )
    due: int = Field(description="Number of jobs to which this would happen at once.")
    grace_minutes: Whole
