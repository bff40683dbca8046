"""Request and response schemas of the endpoints for reports by mail."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from portal.api.fields import Line


class NewSubscription(Schema):
    report: Literal[
        "statement",
        "usage",
        "fairness",
        "idle",
        "trades",
        "anomalies",
        "use",
        "nodes",
        "waits",
        "waste",
        "prices",
        "chargeback",
        "capacity",
    ] = "statement"
    team: Line = Field(
        "",
        description="Slug of a team, required for `statement`. Without it, `usage`, `fairness`, `idle`, `trades` and "
        "`anomalies` are of all teams that the caller may see. All other reports are for operators.",
    )
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"] = Field(
        "", description="Grouping of `usage`; by user if empty."
    )
    label: Line = Field("", description="Key of the label of `usage` by label.")
    rhythm: Literal["weekly", "monthly"]
    form: Literal["pdf", "xlsx", "csv", "link"] = "pdf"


class Subscription(NewSubscription):
    id: int
