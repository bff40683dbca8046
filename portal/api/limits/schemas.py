"""Request and response schemas of the endpoints for limits and tickets."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Flag, Line, Whole
from portal.api.versions import VERSION

LimitKind = Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"]


AtLimit = Literal["block", "idle", "warn"]


class LimitTerms(Schema):
    kind: LimitKind = Field(
        description="What is limited. For `longest_run`, the limit is a number of hours; for `storage`, a number of "
        "GiB. For `borrowed`, the limit is a fraction of the entitlement."
    )
    limit: Amount
    generation: Line | None = Field(
        None, description="Name of a generation; null for all generations together."
    )
    user: Line | None = Field(
        None, description="User name of the member to limit; null to limit the whole team."
    )
    each_user: Flag = False
    period: Literal["", "month", "quarter", "rolling"] = Field(
        "", description="Period over which `gpu_hours` and `money` are counted; a calendar month if empty."
    )
    days: Whole | None = Field(None, description="Length of a rolling period in days.")
    at_limit: AtLimit = Field(
        "block",
        description="What happens to jobs beyond the limit: `block` does not let them run, `idle` makes "
        "them preemptible, `warn` lets them run and sends a warning.",
    )


class NewLimit(LimitTerms):
    team: Line


class Limit(NewLimit):
    version: str = Field(description=VERSION)
    id: int
    by_managers: bool = Field(description="Whether managers of the team set the limit and may change it.")
    used: Figure | None = Field(
        description="Current usage that counts against the limit. If `each_user` is true, the highest usage of any "
        "user. Null in the response to a change of the limit."
    )
    of_former_member: bool = Field(
        description="Whether the limit is on a user who has left the team. It counts again if the user returns."
    )


class OwnLimit(Limit):
    used_in: str = Field(description="Slug of the team in which the usage counts.")


class NewTickets(Schema):
    team: Line
    user: Line | None = Field(
        None,
        description="User name of the member whose tickets change; null to change the tickets of the "
        "team itself.",
    )
    tickets: Whole


class ShareChange(Schema):
    """The numbers of GPUs of a team (including the teams below it), or of a member, before and after a change.

    `entitled_before` and `entitled_after` are the numbers that the tickets earn. `share_before` and `share_after` also
    count borrowed GPUs.
    """

    cluster: str
    team: str
    user: str | None = Field(
        description="User name of the member whose share changes; null for the share of the team."
    )
    generation: str
    entitled_before: float
    entitled_after: float
    share_before: float
    share_after: float
