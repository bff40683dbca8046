"""Request and response schemas of the endpoints for the unfinished work of a user in a team."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Line


class Work(Schema):
    """The numbers of unfinished jobs, sweeps, pipelines and sessions, services and schedules of a user in a team."""

    running_jobs: int = 0
    waiting_jobs: int = 0
    sessions: int = 0
    services: int = 0
    schedules: int = 0
    sweeps: int = 0
    pipelines: int = 0


class HandOver(Schema):
    team: Line
    to: Line = Field(
        description="User name of the new owner, who must have the right to submit jobs in the team."
    )


class HandedOver(Schema):
    jobs: int
    services: int
    schedules: int
    sweeps: int
    pipelines: int
    kept: list[str] = Field(
        description="Names of jobs, services, schedules, sweeps and pipelines that were not handed over, because they"
        " use secrets."
    )
