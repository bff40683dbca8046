"""Request and response schemas of the endpoints for sharing anomalies."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from portal.api.fields import AskedWhole, FileFormat, Line, Whole
from portal.api.old_names import WithOldNames, answered_too


class AnomalyHolder(Schema):
    """A job that held GPUs while a delayed job needed them.

    All jobs of teams that the caller may not see are combined in one entry with `job_id` null.
    """

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


class SharingAnomaly(Schema):
    """A job that started or ended later than it would have on its team's private cluster, which has only the GPUs of
    the team's share."""

    id: int
    job_id: int
    job: str
    team: str
    cause: str = Field(
        description="Main cause of the anomaly, such as `over_borrowing`, `fragmentation`, "
        "`reservation`, `priority` or `failure`."
    )
    causes: dict[str, float] = Field(description="Delay of the job in seconds, divided among its causes.")
    late_seconds: float = Field(
        description="Delay of the job in seconds. If the job has not started, the real delay may be longer."
    )
    at_end: bool = Field(
        description="True: the job ended later than it would have on the team's private cluster. False: it "
        "started later."
    )
    started_at: datetime | None
    ended_at: datetime | None
    private_started_at: datetime
    private_ended_at: datetime | None
    holders: list[AnomalyHolder]


class AnomalyQuestion(Schema):
    team: Line = Field("", description="Slug of a team; the teams below it are included.")
    cluster: Line = Field("", description="Name of a cluster; by default the first in alphabetical order.")
    analysis: AskedWhole | None = Field(
        None, ge=1, le=2**63 - 1, description="Id of an analysis; by default the latest finished analysis."
    )
    cause: Line = ""
    offset: AskedWhole = Field(0, ge=0, le=2**31 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: FileFormat = "json"


class TeamWithoutResult(Schema):
    """A team for which the analysis has no result. `why` is the reason: the analysis of the team failed, or the team
    had no jobs to compare."""

    team: str = Field(description="Slug of the team.")
    why: str


class NewAnalysis(Schema):
    cluster: Line = Field(description="Name of an attached cluster.")
    days: Whole = Field(
        7, description="Number of days to analyse, 1 to 31. The period ends at the last full hour."
    )


class Analysis(Schema):
    """An analysis that was started and runs in the background. Each team's results can be read as soon as they are
    ready."""

    analysis: int
    cluster: str
    begins: datetime
    ends: datetime
    finished_at: datetime | None


class FalseRate(Schema):
    load: float = Field(
        description="Load of the cluster: GPU time that jobs demand, divided by the cluster's capacity."
    )
    part: float = Field(
        description="False positive rate: fraction of compared jobs that are reported as anomalies but are none."
    )


class SharingAnomalies(WithOldNames, Schema):
    """The results of one analysis for the teams that the caller may see."""

    analysis: int | None = Field(description="Id of the analysis; null if there is no analysis yet.")
    cluster: str | None
    begins: datetime | None
    ends: datetime | None
    teams: int
    teams_done: int
    finished_at: datetime | None
    compared: int = Field(
        description="Number of jobs that the analysis compared, in the teams that the caller may see."
    )
    too_large: int = Field(
        description="Number of jobs that need more GPUs than the private cluster of their team has."
    )
    false_rates: list[FalseRate] = Field(
        description="Simulated false positive rates at several loads of the cluster."
    )
    without_result: list[TeamWithoutResult] = Field(
        description="Teams whose analysis has no result, with the reason."
    )
    nothing_said: list[TeamWithoutResult] = answered_too("without_result")
    items: list[SharingAnomaly]
    total: int
