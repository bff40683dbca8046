"""Request and response schemas of the endpoints for announcements."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Flag, Line, Words
from portal.api.versions import VERSION

Severity = Literal["info", "warning", "critical"]
Role = Literal["viewer", "member", "manager", "operator", "admin"]


class Announcement(Schema):
    """An announcement. Empty `roles`, `teams` and `clusters` fit every user; of the others, each must fit."""

    version: str = Field(description=VERSION)
    id: int
    text: str
    severity: Severity
    begins_at: datetime
    ends_at: datetime | None
    dismissible: bool
    roles: list[Role]
    teams: list[str]
    clusters: list[str]
    withdrawn_at: datetime | None


class NewAnnouncement(Schema):
    text: Words = Field(description="Text of the announcement, at most 500 characters.")
    severity: Severity = "info"
    begins_at: AwareDatetime | None = Field(
        None, description="Time from which pages show the announcement; null: now."
    )
    ends_at: AwareDatetime | None = Field(
        None, description="Time until which pages show the announcement; null: until it is withdrawn."
    )
    dismissible: Flag = Field(True, description="Whether users may remove the announcement from their pages.")
    roles: list[Role] = Field(
        default_factory=list, description="Show the announcement only to users with one of these roles."
    )
    teams: list[Line] = Field(
        default_factory=list,
        description="Show the announcement only to members of these teams (slugs), of teams below and above them.",
    )
    clusters: list[Line] = Field(
        default_factory=list,
        description="Show the announcement only to users with unfinished work in these clusters, and to operators.",
    )
