"""What calls about the work of members who leave take and answer."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Line


class Work(Schema):
    """What a user has in a team that has not ended."""

    running_jobs: int = 0
    waiting_jobs: int = 0
    sessions: int = 0
    services: int = 0
    schedules: int = 0


class HandOver(Schema):
    team: Line
    to: Line = Field(description="Name of a user who may submit jobs in the team.")


class HandedOver(Schema):
    jobs: int
    services: int
    schedules: int
    kept: list[str] = Field(description="Names of what stays, as it names secrets.")
