"""Request and response schemas of the endpoints for idle GPUs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Figure, Flag, Line, Whole, Words
from portal.api.old_names import OldValues, WithOldNames, answered_too


class GpuUse(Schema):
    measured_until: datetime
    measure: Literal["gpu", "cpu"] = Field(
        description="`cpu` if the GPUs report nothing: the processor time of the processes."
    )
    percent: float = Field(
        description="Utilisation of the GPUs, or of one processor, at the last measurement."
    )
    idle_since: datetime | None = Field(description="Null if the GPUs are used.")
    idle_seconds: float = Field(description="Seconds without use since `idle_since`, as measured.")
    processless_since: datetime | None = Field(
        description="Since when no process is on the GPUs; null if there is one, or if it is unknown."
    )
    warned_at: datetime | None
    then: Literal["stop", "preemptible"] | None = Field(
        description="What follows the warning: the job is stopped, or becomes preemptible."
    )
    acts_at: datetime | None = Field(
        description="When this happens at the earliest; not at all if the GPUs are used again."
    )
    snoozed_until: datetime | None
    snooze_reason: str
    snooze_at_most: datetime | None = Field(
        description="Latest time for which the job can be snoozed; null if it cannot."
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
    """Booked time of a team's allocated but unused GPUs. `processless_gpu_seconds` is the part in which no process was
    observed on the GPUs."""

    team: str
    idle_gpu_seconds: Figure
    processless_gpu_seconds: Figure
    allocated_gpu_seconds: Figure
    held_gpu_seconds: Figure = answered_too("allocated_gpu_seconds")
    part: float = Field(description="Fraction of the allocated time.")
    idle_cost: Figure = Field(description="The idle fraction of the cost of each hour.")
    cost: Figure = Field(description="Cost of all allocated time.")
    currency: str


class Snooze(Schema):
    until: AwareDatetime
    reason: Words


class NewIdleRule(Schema):
    team: Line = Field(
        "", description="Slug of a team; the rule holds for teams below it without a rule of their own, too."
    )
    cluster: Line = Field("", description="Name of a cluster; the rule holds for teams without a rule.")
    action: Annotated[
        Literal["nothing", "warn", "preemptible", "stop"], OldValues((("only_idle", "preemptible"),))
    ]
    after_minutes: Whole
    grace_minutes: Whole = 30
    snooze_hours: Whole = Field(24, description="For how long owners may snooze it; 0 for not at all.")
    services: Flag = Field(
        False, description="Whether to warn of replicas of services, too. They are never stopped."
    )


class IdleRule(NewIdleRule):
    id: int
