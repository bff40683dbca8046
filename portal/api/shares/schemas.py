"""What calls about shares and trades take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import AskedWhole, Figure, FileFormat, Line
from portal.api.reports.schemas import Days


class Amounts(Schema):
    """Of a team with teams below it, what these lend and sell each other is left out."""

    entitled: float
    received: float
    lent: float = Field(description="Not needed by the team, used by others.")
    unused: float = Field(description="Not needed by the team, used by nobody.")
    borrowed: float
    bought: float
    sold: float


class ShareOfGeneration(Schema):
    generation: str
    total: Amounts
    owed: float = Field(
        description="Balance that the next rounds make good, of all GPUs, divided as the share is."
    )
    points: list[Amounts]


class Share(Schema):
    """GPU-seconds on one cluster in equal stretches of `step_seconds`, oldest first."""

    team: str
    cluster: str | None = Field(description="Null while there is no cluster.")
    begins: datetime
    ends: datetime
    step_seconds: float
    generations: list[ShareOfGeneration]


class TradeSide(Schema):
    team: str
    gave: float
    gave_generation: str
    got: float
    got_generation: str
    speedup: float
    without: float = Field(
        description="What was given, as GPUs of the slow generation by the side's own speed-up."
    )
    with_trade: float = Field(description="What was got, in the same measure.")
    gain: float


class Trade(Schema):
    """A trade with the sides that the caller may see; the other one stays without a name."""

    id: int
    begins: datetime
    ends: datetime | None
    fast: str
    slow: str
    price: float
    sides: list[TradeSide]
    counterpart: str


class BookedTrades(Schema):
    """GPU-seconds of one generation in the ledger, exact; over all teams the sum is zero."""

    generation: str
    gave: Figure
    got: Figure
    sum: Figure


class TradePage(Schema):
    items: list[Trade]
    next: int | None


class TradePeriod(Days):
    period: Literal["1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = Field(
        None, description="`dates` where `from` or `to` is given, else `24h`."
    )


class TradeQuestion(TradePeriod):
    team: Line = Field("", description="Slug of a team; with all teams below it.")
    generation: Line = ""
    before: AskedWhole | None = Field(None, ge=0, le=2**63 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: FileFormat = "json"
