"""Request and response schemas of the endpoints for schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime, ConfigDict

from portal.api.fields import Flag, Line, Whole
from portal.api.jobs.schemas import EXAMPLE, NewJob
from portal.api.versions import VERSION


class ScheduleTerms(NewJob):
    """The job specification of a schedule, and the timetable and rules for submitting its jobs."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": EXAMPLE | {"expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin"}
        }
    )

    expression: Line = Field(
        description="When jobs are submitted. Either a cron expression of five fields, such as `30 2 * * "
        "MON-FRI` (at 02:30 from Monday to Friday). Or a repeat of ISO 8601, such as "
        "`R5/2026-11-21T08:00:00Z/PT6H` (5 runs from 08:00 UTC, 6 hours apart)."
    )
    time_zone: Line = Field("UTC", description="IANA name of a time zone, such as `Europe/Berlin`.")
    begins: AwareDatetime | None = None
    ends: AwareDatetime | None = None
    missed: Literal["skip", "once", "all"] = Field(
        "once",
        description="What happens to missed runs: `skip` skips them, `once` runs one job for all of them, "
        "`all` runs each of them.",
    )
    catch_up_seconds: Whole = Field(
        86_400, description="Greatest age of a missed run, in seconds. Older missed runs are skipped."
    )
    overlap: Literal["allow", "forbid", "replace"] = Field(
        "forbid",
        description="What happens if an earlier run has not ended when a run is due: `allow` runs both, "
        "`forbid` skips the new run, `replace` cancels the earlier run.",
    )
    even_if_never: Literal[False] = Field(
        False,
        description="Must be false. If the job of a run can never start, the job is refused, and the list of runs "
        "gives the reason.",
    )


class NewSchedule(ScheduleTerms):
    """A schedule to create: the job specification, and the timetable and rules for submitting its jobs."""

    paused: Flag = Field(
        False, description="True creates the schedule paused: it starts no runs until it is resumed."
    )


class Schedule(Schema):
    id: int
    version: str = Field(description=VERSION)
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
    next_due_at: datetime | None = Field(description="Time of the next run; null if no run is left.")
    refusals: int = Field(
        description="Number of runs refused in a row; after five the schedule is paused automatically."
    )
    paused_at: datetime | None
    paused_reason: str
    deleted_at: datetime | None
    created_at: datetime


class ScheduleInFull(Schedule):
    words: str = Field(description="Meaning of `expression` in plain words.")
    notes: list[str] = Field(
        description="Warnings about surprising effects of `expression`. For example, `*/45` runs at minutes 0 and 45 "
        "of each hour, not every 45 minutes."
    )
    next_runs: list[datetime]


class SchedulePage(Schema):
    """A page of schedules, newest first.

    To get the next page, with older schedules, call the endpoint again with the parameter `before` set to `next`, which
    is null on the last page.
    """

    items: list[Schedule]
    next: int | None


class ScheduleRun(Schema):
    """A run of a schedule. It covers all due times from `due_from` to `due_at`.

    Usually `due_from` and `due_at` are the same time. They differ if several missed due times are combined into one
    run.
    """

    id: int
    due_from: datetime
    due_at: datetime
    outcome: Literal["submitted", "skipped", "refused"]
    text: str
    job_id: int | None
    asked_by: str | None = Field(
        description="User name of the person who started the run by hand; null if the schedule started "
        "the run."
    )
    at: datetime


class ScheduleRunPage(Schema):
    """A page of the runs of a schedule, newest first.

    To get the next page, with older runs, call the endpoint again with the parameter `before` set to `next`, which is
    null on the last page.
    """

    items: list[ScheduleRun]
    next: int | None
