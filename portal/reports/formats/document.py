"""A report's contents, independent of any format: tables of typed cells under a title.

A table is read once, row by row, so that rows may be a generator over more than fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from enum import StrEnum

from accounting.core.wording import fixed, in_millionths

Number = int | float | Decimal
Cell = str | Number | date | datetime | None


class Kind(StrEnum):
    """The type of a column's cells. Each format shows and aligns them by this alone."""

    TEXT = "text"
    ID = "id"  # int that identifies something
    NUMBER = "number"  # int, float or Decimal
    GPU_TIME = "gpu_time"  # Decimal GPU-seconds for programs; people see GPU-hours
    MINUTES = "minutes"  # float seconds for programs; people see minutes
    DURATION = "duration"  # float seconds; pages show them as a duration
    MONEY = "money"  # Decimal; the currency is another column, as a table may have several
    DATE = "date"
    MOMENT = "moment"  # aware datetime
    SECOND = "second"  # the same, shown to the second


NUMERIC = {Kind.NUMBER, Kind.GPU_TIME, Kind.MINUTES, Kind.DURATION, Kind.MONEY}
# Numbers for people are those for programs divided by this.
UNITS = {Kind.GPU_TIME: 3600, Kind.MINUTES: 60}


@dataclass(frozen=True)
class Column:
    """`key` is its name for programs (CSV, JSON), `heading` for people (XLSX, PDF).

    `digits` are the most decimals shown to people; programs get all.
    """

    key: str
    heading: str
    kind: Kind = Kind.TEXT
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """Rows as long as `columns`; so are `totals`, the last rows: one, or one per currency."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    note: str = ""
    more: int = 0  # number of further rows, which are not shown


@dataclass(frozen=True)
class Document:
    """Tables under a title and a few facts (label, text), as in the head of a letter.

    `zone` is that of all its moments; programs get them with their offset, in UTC without a zone. Without `has_keys`
    the tables of a CSV file have no lines above them that name them, for programs that expect none.
    """

    title: str
    tables: Sequence[Table]
    facts: Sequence[tuple[str, str]] = field(default=())
    zone: tzinfo | None = None
    has_keys: bool = True


def cut_note(shown: int, more: int) -> str:
    """Returns the note for a table that shows some of its rows; empty if it shows all."""
    if more <= 0:
        return ""
    return f"Here are {shown} of {shown + more} rows; the CSV, XLSX and JSON files have them all."


def shown(column: Column, cell: Cell, zone: tzinfo | None = None) -> str:
    """Returns a cell for people: separated thousands, and no more decimals than the column has."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        pattern = "%Y-%m-%d %H:%M:%S" if column.kind == Kind.SECOND else "%Y-%m-%d %H:%M"
        return format(cell.astimezone(zone), pattern)
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, str) or column.kind == Kind.ID:
        return str(cell)
    cell = in_unit(column, cell)
    digits = column.digits if column.kind in NUMERIC else 0
    return fixed(cell, digits)


def in_unit(column: Column, number: Number) -> Number:
    """Returns a number in the unit for people."""
    return number / UNITS[column.kind] if column.kind in UNITS else number


def told(cell: Cell, zone: tzinfo | None = None) -> str | int | float | None:
    """Returns a cell for programs: to the millionth, decimals as text without exponents, moments as ISO 8601."""
    if isinstance(cell, Decimal):
        return f"{in_millionths(cell):f}"
    if isinstance(cell, datetime):
        return cell.astimezone(zone or UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    return cell
