"""What a report says, free of any format: tables of typed cells under a title.

A table is read once, row by row, so that rows may be a generator over what does not fit into memory.
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
    """What the cells of a column are. Each format shows and aligns them by this alone."""

    TEXT = "text"
    ID = "id"  # int that names something
    NUMBER = "number"  # int, float or Decimal
    GPU_TIME = "gpu_time"  # Decimal GPU-seconds, as programs get them; people see GPU-hours
    MINUTES = "minutes"  # float seconds, as programs get them; people see minutes
    MONEY = "money"  # Decimal; the currency is a column of its own, as a table may have several
    DATE = "date"
    MOMENT = "moment"  # aware datetime
    SECOND = "second"  # the same, which people see to the second


NUMERIC = {Kind.NUMBER, Kind.GPU_TIME, Kind.MINUTES, Kind.MONEY}
# By how much people see numbers smaller than programs do.
UNITS = {Kind.GPU_TIME: 3600, Kind.MINUTES: 60}


@dataclass(frozen=True)
class Column:
    """`key` is its name for programs (CSV, JSON), `heading` for people (XLSX, PDF).

    `digits` are the decimals that people see at most; programs get what there is.
    """

    key: str
    heading: str
    kind: Kind = Kind.TEXT
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """Rows as long as `columns`; so are `totals`, the last rows: one, or one a currency."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    note: str = ""
    more: int = 0  # rows that there are beside these; what shows the table says so


@dataclass(frozen=True)
class Document:
    """Tables under a title and a few facts (label, text), as they stand at the head of a letter.

    `zone` is that of all its moments; programs get them with their offset, in UTC without a zone. Without `has_keys`
    the tables of a CSV file have no lines above them that name them, as programs that read it know them without.
    """

    title: str
    tables: Sequence[Table]
    facts: Sequence[tuple[str, str]] = field(default=())
    zone: tzinfo | None = None
    has_keys: bool = True


def cut_note(shown: int, more: int) -> str:
    """What is said where a table shows some of its rows; empty where it shows all."""
    if more <= 0:
        return ""
    return f"Here are {shown} of {shown + more} rows; the CSV, XLSX and JSON files have them all."


def shown(column: Column, cell: Cell, zone: tzinfo | None = None) -> str:
    """A cell as people read it: thousands apart, and no more decimals than the column has."""
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
    """A number as people count it."""
    return number / UNITS[column.kind] if column.kind in UNITS else number


def told(cell: Cell, zone: tzinfo | None = None) -> str | int | float | None:
    """A cell for programs: to the millionth, decimals as text without exponents, moments and days as ISO 8601."""
    if isinstance(cell, Decimal):
        return f"{in_millionths(cell):f}"
    if isinstance(cell, datetime):
        return cell.astimezone(zone or UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    return cell
