"""Request and response schemas of the endpoints for notebook sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Whole
from portal.api.jobs.schemas import NewJob
from portal.api.old_names import WithOldNames, answered_too, read_as
from portal.api.services.schemas import Interruption, ReservedAhead

SessionKind = Literal["notebook", "vscode"]


class NewSession(WithOldNames, NewJob):
    """A session to start: a job specification with one worker and a port, the session's idle timeout, and its time
    limit."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "spec": {"name": "notes", "command": "python -m http.server $PORT", "port": 8000},
                "idle_timeout_minutes": 60,
                "time_limit_hours": 12,
            }
        }
    )

    kind: SessionKind = Field(
        "notebook",
        description="Use vscode for VS Code in the browser, which serves at the root of its host; notebook for all "
        "other programs, which serve below FAIRLOT_BASE_URL.",
    )
    idle_timeout_minutes: Whole = Field(
        60,
        description="The session is stopped when nobody has used it for this many minutes. The owner is warned first.",
    )
    idle_minutes: Whole | None = read_as("idle_timeout_minutes")
    time_limit_hours: Whole = Field(
        12,
        description="Number of hours from the session's first start until it is stopped, even if it is in use.",
    )
    longest_hours: Whole | None = read_as("time_limit_hours")
    files_from: Whole | None = Field(
        None,
        description="Id of an ended session of the same team and cluster. Its files are copied into the new session "
        "before its program starts: everything in the folders of the job, and with the same owner its home folder; in "
        "Kubernetes the files in FAIRLOT_CHECKPOINT_DIR.",
    )


class Session(WithOldNames, Schema):
    id: int = Field(description="Id of the session; its job has the same id.")
    name: str
    kind: SessionKind = Field(description="How Fairlot speaks to the session's program.")
    state: str
    team: str
    owner: str
    cluster: str
    ready: bool
    reason: str = Field(description="Why the session waits or does not answer; empty if it answers.")
    sentence: str = Field(description="State of the session in plain words.")
    warned: bool = Field(description="Whether the session will be stopped soon because nobody uses it.")
    idle_timeout_minutes: int
    idle_minutes: int = answered_too("idle_timeout_minutes")
    time_limit_hours: int
    longest_hours: int = answered_too("time_limit_hours")
    idle_ends_at: datetime | None = Field(
        description="Time at which the idle timeout stops the session, unless somebody uses it before; null while "
        "the session does not run."
    )
    ends_at: datetime | None = Field(
        description="Time at which the time limit stops the session; null before its first start and after its end."
    )
    claimable_from: datetime | None = Field(
        description="Time from which other jobs may suspend the session; null while its GPUs are guaranteed."
    )
    created_at: datetime
    end_message: str


class SessionInFull(Session):
    files_from: int | None = Field(
        description="Id of the session whose files were copied; null if none were."
    )
    files_sentence: str = Field(
        description="What happens to the files when the session stops; after its end why a new session cannot get "
        "them, or empty if it can."
    )
    files_kept_until: datetime | None = Field(
        description="Time at which the files of an ended session are deleted; null if unknown or never."
    )
    interruptions: list[Interruption] = Field(description="The 20 most recent interruptions, newest first.")
    expected_back_at: datetime | None = Field(
        description="Time by which a waiting session is expected to start; null if unknown."
    )
    reserved_ahead: list[ReservedAhead] = Field(
        description="Windows of other teams' reservations, open or within a day, for which the session may be stopped."
    )
    exit_meaning: str = Field(
        description="What the exit code of a failed job means; empty if the code has no known meaning."
    )
    last_lines: list[str] = Field(
        description="The end of the log of a session that failed, or that runs and is not ready: at most "
        "20 lines or 4 KB."
    )


class SessionPage(Schema):
    """A page of sessions, newest first.

    To get the next page, with older sessions, call the endpoint again with the parameter `before` set to `next`, which
    is null on the last page.
    """

    items: list[Session]
    next: int | None
