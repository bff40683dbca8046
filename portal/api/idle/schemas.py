"""What calls about idle GPUs take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Figure, Flag, Line, Whole, Words
from portal.api.old_names import OldValues, WithOldNames, answered_too


class GpuUse(Schema):
    measured_until: datetime
    measure: Literal["gpu", "cpu"] = Field(description="cpu: where GPUs tell nothing, its processes' time.")
    percent: float = Field(description="Of its GPUs' time, or of one processor's, when last seen.")
    idle_since: datetime | None = Field(description="Null: its GPUs are used.")
    idle_seconds: float = Field(description="Held without use since then, as measured.")
    processless_since: datetime | None = Field(
        description="Since then no process is on its GPUs; null: there is one, or nobody can tell."
    )
    warned_at: datetime | None
    then: Literal["stop", "preemptible"] | None = Field(
        description="What follows the warning: it is stopped, or takes no part in the sharing any more."
    )
    acts_at: datetime | None = Field(
        description="Not before then, and not at all where somebody uses its GPUs; later the later it gets them."
    )
    snoozed_until: datetime | None
    snooze_reason: str
    snooze_at_most: datetime | None = Field(description="Until when it may be put off; null: not at all.")


class IdleJob(GpuUse):
    job: int
    name: str
    team: str
    owner: str
    cluster: str
    gpus: int
    generation: str


class IdleTeam(WithOldNames, Schema):
    """What a team held without use, as booked; `processless` is a part of it, as observed where GPUs tell."""

    team: str
    idle_gpu_seconds: Figure
    processless_gpu_seconds: Figure
    allocated_gpu_seconds: Figure
    held_gpu_seconds: Figure = answered_too("allocated_gpu_seconds")
    part: float = Field(description="Of what it held.")
    idle_cost: Figure = Field(description="Of each hour's cost as much as was idle of the hour.")
    cost: Figure = Field(description="Of all that it held.")
    currency: str


class Snooze(Schema):
    until: AwareDatetime
    reason: Words


class NewIdleRule(Schema):
    team: Line = Field("", description="With all below it that have no rule of their own.")
    cluster: Line = Field("", description="By its name; where no team has a rule.")
    action: Annotated[
        Literal["nothing", "warn", "preemptible", "stop"], OldValues((("only_idle", "preemptible"),))
    ]
    after_minutes: Whole
    grace_minutes: Whole = 30
    snooze_hours: Whole = Field(24, description="For so long owners may put it off; 0: not at all.")
    services: Flag = Field(False, description="Warn of replicas of services, too; they are never stopped.")


class IdleRule(NewIdleRule):
    id: int
