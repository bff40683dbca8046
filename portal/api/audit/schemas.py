"""Request and response schemas of the endpoints for the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Field, Schema

from portal.api.fields import Line


class AuditSearch(Schema):
    actor: Line = Field("", description="Part of the name of the user who made the change, or of `Fairlot`.")
    kind: Line = Field("all", description="Kind of change, such as `members` or `limits`.")
    verb: Line = Field("", description="What was done, such as `quota.set`.")
    target: Line = Field(
        "",
        description="Words, or their beginnings, in the name of the changed object, or a part of the name of its "
        "team.",
    )
    q: Line = Field("", description="Words, or their beginnings, in the names and in the values.")
    first: Line = Field("", alias="from", description="First day, such as `2026-11-21`.")
    to: Line = Field("", description="Last day, which is included.")
    zone: Line = Field("UTC", description="IANA name of the time zone in which days begin and end.")


class AuditEvent(Schema):
    id: int
    at: datetime
    actor: str = Field(description="Name of the user at that time; `Fairlot` for what Fairlot did itself.")
    verb: str
    action: str = Field(description="The verb in words.")
    target_type: str
    target_id: str
    target: str = Field(description="Name of the changed object at that time.")
    team: str | None
    before: dict[str, Any]
    after: dict[str, Any]


class AuditPage(Schema):
    items: list[AuditEvent]
    next: int | None
