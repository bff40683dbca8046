"""The contents of a report, independent of the file format: tables of typed cells under a title.

Each format reads a table's rows once and in order, so `rows` may be a generator over more rows than fit into memory.
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
    """The type of a column's cells, which decides how each format shows and aligns the cells."""

    TEXT = "text"
    ID = "id"  # an int that identifies something
    NUMBER = "number"  # int, float or Decimal
    GPU_TIME = "gpu_time"  # GPU-seconds as Decimal; people see GPU-hours
    MINUTES = "minutes"  # seconds as float; people see minutes
    DURATION = "duration"  # seconds as float; pages show a duration such as 2 h 05 min
    MONEY = "money"  # Decimal; another column has the currency, because a table may have several currencies
    DATE = "date"
    MOMENT = "moment"  # an aware datetime, shown to the minute
    SECOND = "second"  # an aware datetime, shown to the second


NUMERIC = {Kind.NUMBER, Kind.GPU_TIME, Kind.MINUTES, Kind.DURATION, Kind.MONEY}
# Divisors that turn a number for programs into the number that people see.
UNITS = {Kind.GPU_TIME: 3600, Kind.MINUTES: 60}


@dataclass(frozen=True)
class Column:
    """A column of a table. Programs (CSV, JSON) see `key`, people (XLSX, PDF) see `heading`.

    People see at most `digits` decimals, programs see all.
    """

    key: str
    heading: str
    kind: Kind = Kind.TEXT
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """A table with rows as long as `columns`. `totals` are the rows at its end: a single one, or one per currency."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    note: str = ""
    more: int = 0  # number of rows that the table leaves out


@dataclass(frozen=True)
class Document:
    """A title, facts (pairs of label and text) and tables.

    Times are shown in the time zone `zone`; programs get times with the UTC offset of `zone`, or in UTC if `zone` is
    None. In a CSV file, a line with the table's key precedes each table. Without `has_keys` this line is left out,
    for programs that expect a plain table.
    """

    title: str
    tables: Sequence[Table]
    facts: Sequence[tuple[str, str]] = field(default=())
    zone: tzinfo | None = None
    has_keys: bool = True


def cut_note(shown: int, more: int) -> str:
    """Returns the note that a table shows `shown` rows and leaves out `more`; empty if `more` is 0."""
    if more <= 0:
        return ""
    return f"Here are {shown} of {shown + more} rows; the CSV, XLSX and JSON files have them all."


def shown(column: Column, cell: Cell, zone: tzinfo | None = None) -> str:
    """Returns a cell as text for people: grouped digits, the column's number of decimals, and times in `zone`; empty
    for None."""
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
    """Returns a number in the unit that people see, such as GPU-hours instead of GPU-seconds."""
    return number / UNITS[column.kind] if column.kind in UNITS else number


def told(cell: Cell, zone: tzinfo | None = None) -> str | int | float | None:
    """Returns a cell for programs: decimals as text, to the millionth and without exponents; times as ISO 8601."""
    if isinstance(cell, Decimal):
        return f"{in_millionths(cell):f}"
    if isinstance(cell, datetime):
        return cell.astimezone(zone or UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    return cell
