"""What calls about notebook sessions take and answer."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Whole
from portal.api.jobs.schemas import NewJob
from portal.api.old_names import WithOldNames, answered_too, read_as
from portal.api.services.schemas import Interruption


class NewSession(WithOldNames, NewJob):
    """A job spec of one worker with a port, and how long it lasts."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "spec": {"name": "notes", "command": "python -m http.server $PORT", "port": 8000},
                "idle_timeout_minutes": 60,
                "time_limit_hours": 12,
            }
        }
    )

    idle_timeout_minutes: Whole = Field(60, description="Unused for so long it is stopped, after a warning.")
    idle_minutes: Whole | None = read_as("idle_timeout_minutes")
    time_limit_hours: Whole = Field(
        12, description="So long after its first start it is stopped in any case."
    )
    longest_hours: Whole | None = read_as("time_limit_hours")


class Session(WithOldNames, Schema):
    id: int = Field(description="Also its job's.")
    name: str
    state: str
    team: str
    owner: str
    cluster: str
    ready: bool
    reason: str = Field(description="Why it waits or does not answer; empty when it does neither.")
    sentence: str = Field(description="How it is, in plain words.")
    warned: bool = Field(description="Nobody uses it, and it is stopped soon.")
    idle_timeout_minutes: int
    idle_minutes: int = answered_too("idle_timeout_minutes")
    time_limit_hours: int
    longest_hours: int = answered_too("time_limit_hours")
    idle_ends_at: datetime | None = Field(
        description="When it is stopped if it goes on and nobody uses it. Null while it does not run."
    )
    ends_at: datetime | None = Field(description="When it is stopped in any case.")
    claimable_from: datetime | None = Field(
        description="When others' claims may preempt it; null while it has no more than what is guaranteed."
    )
    created_at: datetime
    end_message: str


class SessionInFull(Session):
    interruptions: list[Interruption] = Field(description="The latest 20, latest first.")
    expected_back_at: datetime | None = Field(
        description="When it starts at the latest if it waits, as far as that can be told."
    )
    exit_meaning: str = Field(
        description="What the exit code of a failed one means; empty where that says nothing."
    )
    last_lines: list[str] = Field(
        description="Of a failed one, the end of its log: 20 lines or 4 KB at most."
    )


class SessionPage(Schema):
    """Latest sessions first; ask again with `before` = `next` for older ones."""

    items: list[Session]
    next: int | None
