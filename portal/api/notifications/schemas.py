"""Request and response schemas of the endpoints for notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import SecretStr

from portal.api.fields import Flag, Key, Line
from portal.api.versions import VERSION

Event = Literal[
    "job.failed",
    "job.ended",
    "job.waiting",
    "job.warned",
    "job.started",
    "job.suspended",
    "sweep.ended",
    "service.failed",
    "budget.warning",
    "request.open",
    "request.answered",
    "channel.failed",
    "token.revoked",
    "team.member",
]


class Notification(Schema):
    id: int
    event: Event
    title: str
    text: str
    team: str = Field(description="Slug of the team; empty for an event of no team.")
    job: int | None = Field(description="Number of the job that the event is about.")
    path: str = Field(description="Path of the page about the event.")
    at: datetime
    read_at: datetime | None


class Notifications(Schema):
    """A page of notifications, newest first. To get the next page, call the endpoint again with the parameter `before`
    set to `next`, which is null on the last page."""

    notifications: list[Notification]
    unread: int
    next: int | None


class Marked(Schema):
    ids: list[Key] | None = Field(
        None, description="Notifications of the caller; null for all.", max_length=1000
    )
    read: Flag = True


class Changed(Schema):
    changed: int


class NewRule(Schema):
    about: Literal["me", "team", "job"] = Field(
        "me",
        description="What concerns the caller, all events of a team with the teams below it, or one job.",
    )
    team: Line = Field("", description="Slug of the team. Required if `about` is `team`.")
    job: Key | None = Field(None, description="Number of the job. Required if `about` is `job`.")
    events: list[Event] = Field(
        max_length=20,
        description="Empty only if `about` is `me`: switches the usual notifications in this place off.",
    )
    way: Literal["bell", "mail", "channel"] = "bell"
    channel: Key | None = Field(None, description="Key of the channel. Required if `way` is `channel`.")
    rhythm: Literal["at_once", "hourly", "daily"] = "at_once"
    wait_minutes: Literal[15, 60, 240, 1440] = Field(
        60, description="After how many minutes `job.waiting` says that a job waits."
    )


class Rule(NewRule):
    version: str = Field(description=VERSION)
    id: int
    is_of_team: bool = Field(description="Whether the rule belongs to the team, and not to the caller.")


class NewChannel(Schema):
    kind: Literal["slack", "teams", "webhook"]
    name: Line
    url: SecretStr = Field(description="Address of the incoming webhook. No response ever contains it.")
    team: Line = Field("", description="Slug of the team that owns the channel; empty for the caller.")


class ChangedChannel(Schema):
    name: Line
    url: SecretStr | None = Field(None, description="The new address; null keeps the present one.")


class Channel(Schema):
    version: str = Field(description=VERSION)
    id: int
    kind: Literal["slack", "teams", "webhook"]
    name: str
    team: str = Field(description="Slug of the team that owns the channel; empty for the caller.")
    host: str = Field(description="Host of the address. The rest of the address is secret.")
    signing_key: str | None = Field(
        description="Key that signs the calls of a `webhook`; null for other kinds, and in lists."
    )
    state: Literal["new", "works", "fails", "paused"] = Field(
        description="`paused`: a message was given up, so nothing is posted until a test succeeds."
    )
    error: str = Field(description="Why the latest call failed; empty if it succeeded.")
    sent_at: datetime | None
    failing_since: datetime | None


class Tested(Schema):
    works: bool
    error: str
