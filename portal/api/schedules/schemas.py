"""What calls about schedules take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime, ConfigDict

from portal.api.fields import Line, Whole
from portal.api.jobs.schemas import EXAMPLE, NewJob


class NewSchedule(NewJob):
    """What a job is submitted with, and when that is to be done again and again."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": EXAMPLE | {"expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin"}
        }
    )

    expression: Line = Field(description="Cron of five fields, or R[n]/start/period of ISO 8601.")
    time_zone: Line = Field("UTC", description="A name of IANA's, such as Europe/Berlin.")
    begins: AwareDatetime | None = None
    ends: AwareDatetime | None = None
    missed: Literal["skip", "once", "all"] = Field(
        "once", description="What becomes of runs that were missed."
    )
    catch_up_seconds: Whole = Field(86_400, description="What was missed longer ago is left out.")
    overlap: Literal["allow", "forbid", "replace"] = Field(
        "forbid", description="What becomes of a run while an earlier one has not ended."
    )
    even_if_never: Literal[False] = Field(
        False, description="A run that could never start is refused, and told so in the schedule's runs."
    )


class Schedule(Schema):
    id: int
    name: str
    team: str
    owner: str
    cluster: str
    spec: dict[str, Any]
    expression: str
    time_zone: str
    begins: datetime | None
    ends: datetime | None
    missed: str
    catch_up_seconds: int
    overlap: str
    next_due_at: datetime | None = Field(description="Null when there is no run left.")
    refusals: int = Field(description="Runs refused in a row; after five it pauses itself.")
    paused_at: datetime | None
    paused_reason: str
    deleted_at: datetime | None
    created_at: datetime


class ScheduleInFull(Schedule):
    words: str = Field(description="The expression in words.")
    notes: list[str] = Field(description="What its steps do that is easily overlooked.")
    next_runs: list[datetime]


class ScheduleFilters(Schema):
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")


class SchedulePage(Schema):
    """Latest schedules first; ask again with `before` = `next` for older ones."""

    items: list[Schedule]
    next: int | None


class ScheduleRun(Schema):
    """What became of the due times from `due_from` to `due_at`, most often one and the same."""

    id: int
    due_from: datetime
    due_at: datetime
    outcome: Literal["submitted", "skipped", "refused"]
    text: str
    job_id: int | None
    asked_by: str | None = Field(description="Who ran it by hand.")
    at: datetime


class ScheduleRunPage(Schema):
    """Latest runs first; ask again with `before` = `next` for older ones."""

    items: list[ScheduleRun]
    next: int | None
