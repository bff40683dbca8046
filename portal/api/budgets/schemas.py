"""Request and response schemas of the endpoints for budgets."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Flag, Line, Whole
from portal.api.versions import VERSION


class NewBudget(Schema):
    team: Line
    amount: Amount
    period: Literal["month", "quarter"] = "month"
    percentages: list[Whole] | None = Field(
        None,
        description="Percentages of the budget at which managers are warned, each once a period. Null "
        "keeps the previous value (80 and 100 for a new budget).",
    )
    by_forecast: Flag | None = Field(
        None,
        description="Whether to warn when the forecast exceeds the budget. Null keeps the previous value "
        "(true for a new budget).",
    )
    webhook_url: Line | None = Field(
        None,
        description="URL of a webhook that receives the warnings. Null leaves the URL unchanged; a new "
        "budget then gets no webhook.",
    )


class SetBudget(Schema):
    version: str = Field(description=VERSION)
    id: int
    signing_key: str | None = Field(
        description="Key that signs the calls to the webhook; only admins and the user who set the webhook's URL "
        "may see the key. Null for other callers, or if there is no webhook."
    )


class Budget(Schema):
    version: str = Field(description=VERSION)
    id: int
    team: str
    period: Literal["month", "quarter"]
    amount: Figure
    percentages: list[int]
    by_forecast: bool
    begins: datetime
    ends: datetime
    spent: Figure
    forecast: Figure | None = Field(
        description="Forecast of the cost at the end of the period; null in the first two days of the period."
    )
