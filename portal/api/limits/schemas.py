"""What calls about limits and tickets take and answer."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Flag, Line, Whole

LimitKind = Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed"]


AtLimit = Literal["block", "idle", "warn"]


class LimitTerms(Schema):
    kind: LimitKind = Field(description="longest_run is in hours, borrowed a part of the entitlement.")
    limit: Amount
    generation: Line | None = Field(None, description="Of all together without.")
    user: Line | None = Field(None, description="Of this user in each team, instead of the whole team.")
    each_user: Flag = False
    period: Literal["", "month", "quarter", "rolling"] = Field(
        "", description="Of gpu_hours and money: a calendar month unless told otherwise."
    )
    days: Whole | None = Field(None, description="Of a rolling period.")
    at_limit: AtLimit = Field(
        "block", description="What happens: nothing more runs, only on idle GPUs, or a warning."
    )


class NewLimit(LimitTerms):
    team: Line


class Limit(NewLimit):
    id: int
    used: Figure | None = Field(
        description="In the period, or now; of each user's limit by who has used most. Null in what was just set."
    )


class NewTickets(Schema):
    team: Line
    user: Line | None = Field(None, description="Of a member of the team, by name; else of the team itself.")
    tickets: Whole


class ShareChange(Schema):
    """GPUs that a team with all below it, or a member, has by tickets, and with what others leave, within limits."""

    cluster: str
    team: str
    user: str | None = Field(description="Where it is of a member of the team.")
    generation: str
    entitled_before: float
    entitled_after: float
    share_before: float
    share_after: float
