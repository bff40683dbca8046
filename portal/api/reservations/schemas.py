"""Request and response schemas of the endpoints for advance reservations."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Figure, Flag, Line, Whole
from portal.api.versions import VERSION


class ReservationWindow(Schema):
    begins: datetime
    ends: datetime


class ReservationTerms(Schema):
    name: Line = Field(description="What the reservation is for.")
    team: Line = Field(description="Slug of the team whose jobs have the GPUs, with those of teams below it.")
    generation: Line = Field(description="GPU type, by name.")
    begins: AwareDatetime
    ends: AwareDatetime
    gpus: Whole | None = Field(None, description="Number of GPUs, on nodes that Fairlot chooses.")
    nodes: list[Line] = Field(
        default_factory=list, description="Instead of `gpus`: all GPUs of these nodes, by name."
    )
    weekly_until: AwareDatetime | None = Field(
        None, description="The window repeats weekly and begins before this time; null: only once."
    )
    zone: Line = Field("UTC", description="Time zone in which weekly windows keep their hours.")
    lends: Flag = Field(
        True, description="Whether jobs of others may run on the GPUs until the team needs them."
    )
    dry_run: Flag = Field(False, description="Only return the effect; nothing is saved.")


class NewReservation(ReservationTerms):
    cluster: Line


class HitJob(Schema):
    id: int
    name: str
    team: str
    owner: str
    gpus: int = Field(description="GPUs that the job holds on the reserved nodes.")
    ends: datetime | None = Field(description="Latest end of the job; null: not known.")


class EntitlementLoss(Schema):
    team: str
    entitled: float
    less: float = Field(description="GPUs that the team loses of its entitlement while a window is open.")


class WaitingJobs(Schema):
    team: str
    jobs: int


class ReservationEffect(Schema):
    """Whom a reservation would hit now."""

    gpu_hours: float
    most_cost: Figure = Field(description="What the team pays if it uses all reserved time.")
    running: list[HitJob]
    hidden: int = Field(description="Running jobs on these nodes that the caller may not see.")
    waiting: list[WaitingJobs]
    losses: list[EntitlementLoss]


class AdvanceReservation(Schema):
    """An advance reservation. With `dry_run`, `id` is null and `effect` says whom it would hit."""

    version: str | None = Field(description=VERSION)
    id: int | None
    name: str
    state: str
    cluster: str
    team: str
    generation: str
    gpus: int
    nodes: dict[str, int] = Field(description="Reserved GPUs by name of the node.")
    lends: bool
    begins: datetime
    ends: datetime
    weekly_until: datetime | None
    windows: list[ReservationWindow] = Field(description="Windows that are not over, earliest first.")
    reserved_gpu_hours: float = Field(description="GPU-hours of its windows until now.")
    used_gpu_hours: float = Field(description="GPU-hours of them in which jobs of the team held the GPUs.")
    effect: ReservationEffect | None = None
