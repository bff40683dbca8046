"""The content of a report, independent of the file format: a title, and tables with typed cells.

Each format reads a table's rows once and in order. So `rows` may be a generator of more rows than fit into memory.
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
    """The type of a column's cells. It determines how each format shows and aligns them."""

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
    """A column of a table.

    Formats for programs (CSV, JSON) use `key` and show all decimals. Formats for people (XLSX, PDF) use `heading` and
    show at most `digits` decimals.
    """

    key: str
    heading: str
    kind: Kind = Kind.TEXT
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """A table. Each row has one cell for each of `columns`.

    `totals` are the rows at the end of the table: a single row, or one for each currency.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()
    note: str = ""
    more: int = 0  # number of rows that the table leaves out


# Labels of facts: the time that the report covers, and whether its figures are final.
PERIOD, STATE = "Period", "State"


@dataclass(frozen=True)
class Document:
    """The content of a report: a title, tables, and facts, which are pairs of label and text.

    - `zone`: the time zone in which times are shown. Formats for programs add the UTC offset, and use UTC if `zone` is
      None.
    - `has_keys`: whether a line with the table's key precedes each table in a CSV file. Programs that expect a plain
      table need files without this line.
    """

    title: str
    tables: Sequence[Table]
    facts: Sequence[tuple[str, str]] = field(default=())
    zone: tzinfo | None = None
    has_keys: bool = True


def cut_note(shown: int, more: int) -> str:
    """Returns a note that says how many rows a table shows and leaves out; "" if it leaves out none."""
    if more <= 0:
        return ""
    return f"This table shows {shown} of {shown + more} rows. The CSV, XLSX and JSON files contain all rows."


def shown(column: Column, cell: Cell, zone: tzinfo | None = None) -> str:
    """Formats a cell as text for people; "" for None.

    Digits are grouped, numbers have the column's number of decimals, and times are in `zone`.
    """
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
    """Converts a number of this column to the unit that people see, for example GPU-seconds to GPU-hours."""
    return number / UNITS[column.kind] if column.kind in UNITS else number


def told(cell: Cell, zone: tzinfo | None = None) -> str | int | float | None:
    """Converts a cell to a value for programs.

    Decimals become text with up to six decimals and without exponents. Dates and times become ISO 8601 text, in `zone`
    or in UTC.
    """
    if isinstance(cell, Decimal):
        return f"{in_millionths(cell):f}"
    if isinstance(cell, datetime):
        return cell.astimezone(zone or UTC).isoformat()
    if isinstance(cell, date):
        return cell.isoformat()
    return cell
