"""Request and response schemas of the endpoints for budgets."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Flag, Line, Whole


class NewBudget(Schema):
    team: Line
    amount: Amount
    period: Literal["month", "quarter"] = "month"
    percentages: list[Whole] | None = Field(
        None,
        description="Percentages that warn managers, once a period. Null: the previous value, at first 80 and 100.",
    )
    by_forecast: Flag | None = Field(
        None,
        description="Whether to warn when the forecast exceeds the budget. Null: the previous value, at first true.",
    )
    webhook_url: Line | None = Field(
        None, description="Address of a webhook for warnings. Null: the previous address, at first none."
    )


class SetBudget(Schema):
    id: int
    signing_key: str | None = Field(
        description="Key that signs the webhooks. Null without a webhook, or if another user set its address."
    )


class Budget(Schema):
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
        description="Forecast for the end of the period; null in its first two days."
    )
