"""Request and response schemas of the endpoints for trade limits."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Amount, Flag, Line


class TradeLimit(Schema):
    """A team's trade limit for one generation: whether the team trades these GPUs, and how many it may give away.

    If `generation` is empty, the limit applies to each generation for which the team has no separate trade limit.
    """

    generation: Line = ""
    trades: Flag = Field(
        True,
        description="Whether the team trades GPUs of this generation. If false, the team neither gives "
        "nor takes such GPUs.",
    )
    most_gpus: Amount | None = Field(
        None,
        description="Maximum number of GPUs given away at the same time, on all clusters together; null for no limit.",
    )
    most_part: Amount | None = Field(
        None,
        description="Maximum fraction of the entitlement given away at the same time on each cluster, from "
        "0 to 1; null for no limit.",
    )
