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
        description="Slug of the team that the report covers. Required for `statement`. If empty, "
        "`usage`, `fairness`, `idle`, `trades` and `anomalies` cover all teams that the "
        "caller may see. Must be empty for the other reports, which only operators receive.",
    )
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"] = Field(
        "", description="How the `usage` report is grouped; by user if empty."
    )
    label: Line = Field(
        "",
        description="Key of the label by which the `usage` report is grouped. Accepted only if `by` is "
        "`label`.",
    )
    rhythm: Literal["weekly", "monthly"]
    form: Literal["pdf", "xlsx", "csv", "link"] = "pdf"


class Subscription(NewSubscription):
    id: int
