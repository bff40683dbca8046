"""Request and response schemas of the endpoints for prices."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Amount, Figure, Line


class NewPrice(Schema):
    generation: Line
    per_gpu_hour: Amount
    idle: Amount | None = Field(None, description="Price of idle time; null if the plain price applies.")
    preemptible: Amount | None = Field(
        None, description="Price of preemptible time; null if the plain price applies."
    )
    borrowed: Amount | None = Field(
        None, description="Price of borrowed time; null if the plain price applies."
    )
    since: datetime | None = Field(
        None, description="From when the price is valid, with a time zone; null means now."
    )


class Price(Schema):
    id: int
    generation: str
    state: Literal["past", "now", "planned"]
    since: datetime
    until: datetime | None = Field(description="Null if no later price is set.")
    per_gpu_hour: Figure
    idle: Figure | None
    preemptible: Figure | None
    borrowed: Figure | None
    currency: str
