"""Makes the cells of CSV files safe, so that spreadsheets never evaluate them as formulas."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime

FORMULA = frozenset("=+-@\N{MINUS SIGN}")
CONTROL = ("\t", "\r", "\n")
UNQUOTED_BREAKS = re.compile("[\0\v\f\x1c-\x1e\x85\u2028\u2029]")


def csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def escape_cell(cell: object) -> object:
    """Returns the cell in a form safe for spreadsheets. Text that looks like a formula gets a leading apostrophe.

    Datetimes become ISO 8601. Unusual line breaks, such as form feeds, become spaces. Python's csv module does not
    quote these characters, so line-based programs would split the record at them.
    """
    if isinstance(cell, datetime):
        return cell.isoformat()
    if isinstance(cell, str):
        text = UNQUOTED_BREAKS.sub(" ", cell)
        return f"'{text}" if _begins_like_a_formula(cell) else text
    return cell


def _begins_like_a_formula(text: str) -> bool:
    if text[:1] in CONTROL:
        return True
    # Some spreadsheets skip leading invisible characters, or accept full-width signs.
    for char in unicodedata.normalize("NFKC", text):
        if not char.isspace() and unicodedata.category(char)[0] != "C":
            return char in FORMULA
    return False
