"""What calls about trade limits take and answer."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Amount, Flag, Line


class TradeLimit(Schema):
    """Which trades a team allows for a generation. An empty generation applies to all without a limit."""

    generation: Line = ""
    trades: Flag = Field(True, description="False: GPUs of this generation are neither given nor taken.")
    most_gpus: Amount | None = Field(
        None, description="Most GPUs given away at once on all clusters together; null for no limit."
    )
    most_part: Amount | None = Field(
        None,
        description="Most of the entitlement given away at once on each cluster, from 0 to 1; null for no limit.",
    )
