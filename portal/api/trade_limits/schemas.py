"""Request and response schemas of the endpoints for trade limits."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Amount, Flag, Line


class TradeLimit(Schema):
    """A limit on the trades of a team in one generation.

    If `generation` is empty, the limit applies to each generation for which the team has no separate trade limit.
    """

    generation: Line = ""
    trades: Flag = Field(True, description="False: GPUs of this generation are neither given nor taken.")
    most_gpus: Amount | None = Field(
        None, description="Most GPUs given away at once on all clusters together; null for no limit."
    )
    most_part: Amount | None = Field(
        None,
        description="Most of the entitlement given away at once on each cluster, from 0 to 1; null for no limit.",
    )
