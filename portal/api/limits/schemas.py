"""Request and response schemas of the endpoints for limits and tickets."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Flag, Line, Whole

LimitKind = Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed"]


AtLimit = Literal["block", "idle", "warn"]


class LimitTerms(Schema):
    kind: LimitKind = Field(
        description="`longest_run` is in hours, `borrowed` is a fraction of the entitlement."
    )
    limit: Amount
    generation: Line | None = Field(
        None, description="Name of a generation; null for all generations together."
    )
    user: Line | None = Field(None, description="Limits this user instead of the whole team.")
    each_user: Flag = False
    period: Literal["", "month", "quarter", "rolling"] = Field(
        "", description="Period of `gpu_hours` and `money`; a calendar month if empty."
    )
    days: Whole | None = Field(None, description="Length of a rolling period in days.")
    at_limit: AtLimit = Field(
        "block",
        description="What happens at the limit: nothing more runs, jobs run only on idle GPUs, or a warning is sent.",
    )


class NewLimit(LimitTerms):
    team: Line


class Limit(NewLimit):
    id: int
    used: Figure | None = Field(
        description="Present usage; with `each_user`, the highest usage of a user. Null in the answer to a change."
    )


class NewTickets(Schema):
    team: Line
    user: Line | None = Field(
        None, description="User name of a member of the team; null for the tickets of the team itself."
    )
    tickets: Whole


class ShareChange(Schema):
    """The numbers of GPUs of a team (including the teams below it), or of a member, before and after a change.

    `entitled` is the number to which tickets entitle the team or member; `share` also counts borrowed GPUs.
    """

    cluster: str
    team: str
    user: str | None = Field(description="User name of a member; null for the team.")
    generation: str
    entitled_before: float
    entitled_after: float
    share_before: float
    share_after: float
