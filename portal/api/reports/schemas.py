"""Request and response schemas of the endpoints for reports of usage, statements and capacity."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from portal.api.fields import Figure, FileFormat, Line
from portal.api.old_names import WithOldNames, answered_too


class Fact(Schema):
    """A line in the header of a report: a label and a text.

    The lines `State` and `Usage not booked yet` appear only while figures may still change.
    """

    label: str
    text: str


class UsageRow(Schema):
    """One group of the usage report, with exact decimal amounts.

    A field that can name a group, such as `user` or `generation`, is null unless the report is grouped by it.
    """

    gpu_seconds: Figure
    cost: Figure
    currency: str
    begins: datetime | None
    tenant: str | None
    user: str | None
    job_id: int | None
    job: str | None
    generation: str | None
    label: str | None


class Usage(Schema):
    begins: datetime
    ends: datetime
    facts: list[Fact]
    rows: list[UsageRow]
    totals: list[UsageRow]
    lacks_before: datetime | None = Field(
        description="Usage before this time is archived. Archived hours are counted only if they are "
        "completely in the period. Archived usage of single jobs is stored by day (UTC), so a report of jobs "
        "counts only archived days that are completely in the period."
    )


class Days(Schema):
    """A period of whole days in one time zone: the current day, a calendar month, or the days from `from` to `to`, both
    included."""

    period: Literal["today", "this-month", "last-month", "dates"] | None = Field(
        None,
        description="Period of the report. The default is `dates` if `from` or `to` is set, otherwise "
        "`this-month`.",
    )
    first: Line = Field(
        "",
        alias="from",
        description="First day of the period, such as `2026-11-21`; by default the first day of this month.",
    )
    to: Line = Field("", description="Last day of the period, which is included; by default today.")
    zone: Line = Field(
        "UTC", description="IANA name of the time zone in which days begin and end, such as `Europe/Berlin`."
    )


class StatementQuery(Days):
    team: Line = Field("", description="Slug of a team; by default the first that the caller may see.")
    part: Line = Field(
        "",
        description="Key of the table to return with `format=csv`, because a CSV file contains only one table.",
    )
    format: FileFormat = "json"


class StatementTable(Schema):
    """A table of a report. Amounts are exact decimals as text. `totals` has one row for each currency."""

    title: str
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


class Tables(Schema):
    """A report as tables, with the same figures as the report's files."""

    title: str
    facts: list[Fact]
    tables: dict[str, StatementTable] = Field(
        description="Tables by key: `lines`, `held`, `users`, `jobs`, `days`, `waits`, `waste`, …"
    )


class Statement(Tables):
    team: str
    begins: datetime
    ends: datetime


class CapacityOfGeneration(Schema):
    generation: str
    gpu_seconds: dict[str, Figure] = Field(
        description="GPU-seconds by class: `busy`, `idle`, `assembling` (a job holds the GPUs, but not all of "
        "its workers run yet), `free`, `others` (GPUs used outside Fairlot), `drained`, `down`. The sum is the "
        "capacity."
    )
    capacity_gpu_seconds: Figure
    value: Figure = Field(description="Value of the capacity: GPU-hours times the price per GPU-hour.")
    currency: str


class Bearing(Schema):
    tenant: str
    cost: Figure


class CapacityIdentity(WithOldNames, Schema):
    """The value of all GPU time (GPU-hours times price) in one currency, and its parts. The parts add up exactly:

    tenants + written_off + classes + unallocated + drained + down = value.

    - `tenants`: the sum of the costs of all tenants.
    - `written_off`: the value of usage that corrections took back and billed to nobody else.
    - `classes`: the amount by which the prices of idle, preemptible and borrowed time reduced the costs.
    - `unallocated`, `drained` and `down`: the value of the GPU time in which GPUs were unallocated, drained or down.
    """

    currency: str
    tenants: list[Bearing]
    written_off: Figure = Field(
        description="Value of usage that corrections took back and billed to nobody else."
    )
    taken_back: Figure = answered_too("written_off")
    classes: Figure = Field(
        description="How much less teams were billed because idle, preemptible and borrowed time have separate "
        "prices; negative if teams were billed more."
    )
    unallocated: Figure = Field(
        description="Value of free GPUs and of GPUs used outside Fairlot, including rounding differences."
    )
    used_by_others: Figure = Field(
        description="Value of GPUs used outside Fairlot; included in `unallocated`."
    )
    rounding: Figure = Field(
        description="Sum of the rounding differences of all bills; included in `unallocated`."
    )
    drained: Figure
    down: Figure
    value: Figure
    closes: bool


class Capacity(Schema):
    """The capacity of one cluster or of all clusters in a period.

    It covers those full hours (UTC) of the period that the ledger has already closed.
    """

    begins: datetime
    ends: datetime
    closed_until: datetime | None
    facts: list[Fact]
    generations: list[CapacityOfGeneration]
    identities: list[CapacityIdentity]
