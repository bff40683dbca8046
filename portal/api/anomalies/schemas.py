"""What calls about sharing anomalies take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import AskedWhole, FileFormat, Line, Whole
from portal.api.old_names import WithOldNames, answered_too


class AnomalyHolder(Schema):
    """A job that held GPUs that another lacked; those of teams that the caller may not see are told together."""

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


class SharingAnomaly(Schema):
    """A job that waited longer, or ended later, than on the private cluster that its team's tickets would buy."""

    id: int
    job_id: int
    job: str
    team: str
    cause: str = Field(
        description="The main one: over_borrowing, fragmentation, reservation, priority, failure, …"
    )
    causes: dict[str, float] = Field(description="Seconds by cause.")
    late_seconds: float = Field(description="The least that it can be while the job has not started.")
    at_end: bool = Field(description="Late at its end rather than at its start.")
    started_at: datetime | None
    ended_at: datetime | None
    private_started_at: datetime
    private_ended_at: datetime | None
    holders: list[AnomalyHolder]


class AnomalyQuestion(Schema):
    team: Line = Field("", description="Slug of a team; with all teams below it.")
    cluster: Line = Field("", description="By name; the first if none is named.")
    analysis: AskedWhole | None = Field(
        None, ge=1, le=2**63 - 1, description="The latest finished if none is named."
    )
    cause: Line = ""
    offset: AskedWhole = Field(0, ge=0, le=2**31 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: FileFormat = "json"


class TeamWithoutResult(Schema):
    """A team of which nothing can be said: its analysis failed, or it had no jobs to compare."""

    team: str = Field(description="Its slug.")
    why: str


class NewAnalysis(Schema):
    cluster: Line = Field(description="By name; attached.")
    days: Whole = Field(7, description="The last days, up to the last full hour: 1 to 31.")


class Analysis(Schema):
    """What was asked for; its findings are in GET as teams are done."""

    analysis: int
    cluster: str
    begins: datetime
    ends: datetime
    finished_at: datetime | None


class FalseRate(Schema):
    load: float = Field(description="What the jobs need of what the cluster has.")
    part: float = Field(description="Of the jobs compared.")


class SharingAnomalies(WithOldNames, Schema):
    """One analysis, as far as it is done, of the caller's teams."""

    analysis: int | None = Field(description="None: nothing is analysed yet.")
    cluster: str | None
    begins: datetime | None
    ends: datetime | None
    teams: int
    teams_done: int
    finished_at: datetime | None
    compared: int = Field(description="Jobs, of the caller's teams.")
    too_large: int = Field(description="Jobs that could never run on their team's private cluster.")
    false_rates: list[FalseRate] = Field(
        description="What part of the jobs compared is found where nothing went wrong, by load; as simulated."
    )
    without_result: list[TeamWithoutResult] = Field(
        description="Teams whose analysis has no result, and why."
    )
    nothing_said: list[TeamWithoutResult] = answered_too("without_result")
    items: list[SharingAnomaly]
    total: int
