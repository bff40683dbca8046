"""What calls about reports by mail take and answer."""

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
        description="Of a statement; of usage, fairness, idle, trades and anomalies, too, or of all teams that the "
        "caller sees. All other reports are for operators.",
    )
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"] = Field(
        "", description="Of usage; by user unless told otherwise."
    )
    label: Line = Field("", description="Of usage by label: its key.")
    rhythm: Literal["weekly", "monthly"]
    form: Literal["pdf", "xlsx", "csv", "link"] = "pdf"


class Subscription(NewSubscription):
    id: int
