"""What calls about requests take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import AwareDatetime

from portal.api.fields import Amount, Key, Line, Whole, Words
from portal.api.limits.schemas import LimitTerms


class NewRequest(Schema):
    team: Line = Field(description="Of a new team the one above it.")
    kind: Literal["tickets", "limit", "extension", "team"]
    reason: Words
    until: AwareDatetime | None = Field(None, description="When it shall end; without, it stays.")
    tickets: Whole | None = None
    name: Line | None = Field(None, description="Of a new team.")
    limit: LimitTerms | None = None
    extends: Key | None = Field(None, description="The granted request that shall last longer.")


class Approval(Schema):
    """What is not said is as it was asked for."""

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
        description="When somebody changed by hand what it set: its end changes nothing of that."
    )
    ended_at: datetime | None
    ending: str = Field(description="What became of it at its end, or why it cannot end yet.")


class RequestPage(Schema):
    items: list[Request]
    next: int | None
