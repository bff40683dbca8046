"""What calls about reports of usage, statements and capacity take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from portal.api.fields import Figure, FileFormat, Line
from portal.api.old_names import WithOldNames, answered_too


class Fact(Schema):
    """In words, as in the head of the report's files; `State` and `Not booked yet` are there where more is to come."""

    label: str
    text: str


class UsageRow(Schema):
    """One group of the report; only what it is grouped by is filled in. Amounts are exact decimals."""

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
        description="What was held before is archived, and parts of hours (by job: of days, UTC) are not counted."
    )


class Days(Schema):
    """Whole days. Dates that cannot be read, unknown zones and periods that end before they begin are refused."""

    period: Literal["this-month", "last-month", "dates"] | None = Field(
        None, description="`dates` where `from` or `to` is given, else `this-month`."
    )
    first: Line = Field("", alias="from", description="The first day: 2026-11-21. Of this month without.")
    to: Line = Field("", description="The last day, which counts. Today without.")
    zone: Line = Field("UTC", description="Whose days these are, a name of IANA's, such as Europe/Berlin.")


class StatementQuery(Days):
    team: Line = Field("", description="Slug of a team; else the first that the caller may see.")
    part: Line = Field("", description="With csv: the key of one table.")
    format: FileFormat = "json"


class StatementTable(Schema):
    """Amounts are exact decimals, as text. Of money there is a total a currency; currencies are never added up."""

    title: str
    rows: list[dict[str, Any]]
    totals: list[dict[str, Any]]


class Tables(Schema):
    """A report as its files have it."""

    title: str
    facts: list[Fact]
    tables: dict[str, StatementTable] = Field(
        description="By key: lines, held, users, jobs, days, waits, waste, …"
    )


class Statement(Tables):
    team: str
    begins: datetime
    ends: datetime


class CapacityOfGeneration(Schema):
    generation: str
    gpu_seconds: dict[str, Figure] = Field(
        description="By class: busy, idle, assembling, free, others, drained, down; they sum to capacity."
    )
    capacity_gpu_seconds: Figure
    value: Figure = Field(description="Capacity times price.")
    currency: str


class Bearing(Schema):
    tenant: str
    cost: Figure


class CapacityIdentity(WithOldNames, Schema):
    """tenants + written_off + classes + unallocated + drained + down = value, to the last digit."""

    currency: str
    tenants: list[Bearing]
    written_off: Figure = Field(description="By corrections, and billed to nobody else.")
    taken_back: Figure = answered_too("written_off")
    classes: Figure = Field(description="What prices of classes took from bills; below zero, added.")
    unallocated: Figure = Field(description="Free, used by others than Fairlot, and rounding.")
    used_by_others: Figure = Field(description="A part of unallocated.")
    rounding: Figure = Field(description="A part of unallocated: what many rounded bills leave.")
    drained: Figure
    down: Figure
    value: Figure
    closes: bool


class Capacity(Schema):
    """Of the full UTC hours between both moments that are closed."""

    begins: datetime
    ends: datetime
    closed_until: datetime | None
    facts: list[Fact]
    generations: list[CapacityOfGeneration]
    identities: list[CapacityIdentity]
