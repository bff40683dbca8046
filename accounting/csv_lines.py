"""Lines of CSV files that no spreadsheet takes for more than text and numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime


def csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def harmless(cell: object) -> object:
    """Spreadsheets run a cell that begins like a formula; a name must not be one."""
    if isinstance(cell, datetime):
        return cell.isoformat()
    if isinstance(cell, str) and cell and cell[0] in "=+-@\t\r":
        return f"'{cell}"
    return cell
