"""What calls about budgets take and answer."""

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
        description="At which managers are warned, once each a period. Null: as set before, else 80 and 100.",
    )
    by_forecast: Flag | None = Field(
        None,
        description="Warn when it will not last if it goes on like this. Null: as set before, else true.",
    )
    webhook_url: Line | None = Field(None, description="Null: as set before, else none.")


class SetBudget(Schema):
    id: int
    signing_key: str | None = Field(
        description="Webhooks are signed with it; see docs/limits.md. Null: none is called, or who set it knows."
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
    forecast: Figure | None = Field(description="By the end of the period; none in its first two days.")
