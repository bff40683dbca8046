"""Request and response schemas of the endpoints for requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Amount, Key, Line, Whole, Words
from portal.api.limits.schemas import LimitTerms


class NewRequest(Schema):
    team: Line = Field(description="Slug of the team that asks; for a new team, slug of the parent team.")
    kind: Literal["tickets", "limit", "extension", "team"]
    reason: Words
    until: AwareDatetime | None = Field(
        None, description="When the grant ends; null for a grant without an end."
    )
    tickets: Whole | None = None
    name: Line | None = Field(None, description="Name of the new team.")
    limit: LimitTerms | None = None
    extends: Key | None = Field(None, description="Id of the granted request to extend.")


class Approval(Schema):
    """The approval of a request. For fields that are left out, the requested values are granted."""

    answer: Words = ""
    tickets: Whole | None = None
    name: Line | None = None
    limit: Amount | None = None
    until: AwareDatetime | None = None


class Refusal(Schema):
    answer: Words


class Request(Schema):
    id: int
    team: str
    kind: str
    state: Literal["open", "approved", "declined", "withdrawn"]
    reason: str
    wanted: dict[str, Any]
    until: datetime | None
    extends: int | None
    asked_by: str
    asked_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    answer: str
    granted: dict[str, Any] | None
    ends_at: datetime | None
    overtaken_at: datetime | None = Field(
        description="Time at which somebody changed the granted value by hand, without a request; null if "
        "nobody changed it. The end of the grant does not undo this change."
    )
    ended_at: datetime | None
    ending: str = Field(
        description="What happened when the grant ended. If the grant is past its end but still in force: "
        "why Fairlot cannot end it yet. Otherwise empty."
    )


class RequestPage(Schema):
    items: list[Request]
    next: int | None
