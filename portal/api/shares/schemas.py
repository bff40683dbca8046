"""Request and response schemas of the endpoints for shares and trades."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import AskedWhole, Figure, FileFormat, Line
from portal.api.reports.schemas import Days


class Amounts(Schema):
    """The GPU-seconds that a team, together with the teams below it, was entitled to and received. GPU time that these
    teams lent or sold to each other does not count."""

    entitled: float
    received: float
    lent: float = Field(
        description="GPU time that the team was entitled to but did not need, and that others used."
    )
    unused: float = Field(
        description="GPU time that the team was entitled to but did not need, and that nobody used."
    )
    borrowed: float
    bought: float
    sold: float


class ShareOfGeneration(Schema):
    generation: str
    total: Amounts
    owed: float = Field(
        description="The balance now: GPU-seconds that the next rounds repay; negative if the team received them "
        "early. It does not depend on the period."
    )
    points: list[Amounts]


class Share(Schema):
    """A team's entitlement and use of one cluster over time, in GPU-seconds, with a time series for each generation.

    The points of a time series are `step_seconds` apart. The oldest point comes first.
    """

    team: str
    cluster: str | None = Field(description="Name of the cluster; null if no cluster is attached.")
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
        description="Number of GPUs of the slow generation that do as much work for this team as the GPUs that it "
        "gave in the trade, by the measured speed-up of its jobs."
    )
    with_trade: float = Field(
        description="Number of GPUs of the slow generation that do as much work for this team as the GPUs that it "
        "got in the trade, by the measured speed-up of its jobs."
    )
    gain: float


class Trade(Schema):
    """A trade between two teams. `sides` has an entry for each of the two teams that the caller may see.

    `counterpart` is the name of the team with which the team in the first entry trades, or the text `another team` if
    the caller may not see that team.
    """

    id: int
    begins: datetime
    ends: datetime | None
    fast: str
    slow: str
    price: float
    sides: list[TradeSide]
    counterpart: str


class BookedTrades(Schema):
    """The exact GPU-seconds of one generation that teams gave and got in trades, as booked in the ledger.

    `sum` is `got` minus `gave`. It is zero if all teams are included.
    """

    generation: str
    gave: Figure
    got: Figure
    sum: Figure


class TradePage(Schema):
    items: list[Trade]
    next: int | None


class TradePeriod(Days):
    period: Literal["today", "1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = Field(  # type: ignore[assignment]  # other names than those of whole days
        None,
        description="Period to cover. The default is `dates` if `from` or `to` is set, otherwise `24h`.",
    )


class TradeQuestion(TradePeriod):
    team: Line = Field("", description="Slug of a team; the teams below it are included.")
    generation: Line = ""
    before: AskedWhole | None = Field(None, ge=0, le=2**63 - 1)
    limit: AskedWhole = Field(50, ge=1, le=200)
    format: FileFormat = "json"
