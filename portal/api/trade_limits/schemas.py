"""What calls about trade limits take and answer."""

from __future__ import annotations

from ninja import Field, Schema

from portal.api.fields import Amount, Flag, Line


class TradeLimit(Schema):
    """For a generation, or with an empty one for all that nothing else is said of."""

    generation: Line = ""
    trades: Flag = Field(True, description="False: it is neither given nor taken.")
    most_gpus: Amount | None = Field(
        None, description="Most GPUs given away at once, on all clusters together; null: no limit."
    )
    most_part: Amount | None = Field(
        None, description="The same as a part of the entitlement on each cluster, 0 to 1."
    )
