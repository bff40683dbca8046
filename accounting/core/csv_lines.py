"""Lines of CSV files in which spreadsheets see only text and numbers."""

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


def harmless(cell: object) -> object:
    """Returns the cell for a spreadsheet: an apostrophe is put before what looks like a formula.

    Line breaks that CSV does not quote become spaces, because programs that read by lines would split the record
    there.
    """
    if isinstance(cell, datetime):
        return cell.isoformat()
    if isinstance(cell, str):
        text = UNQUOTED_BREAKS.sub(" ", cell)
        return f"'{text}" if _begins_like_a_formula(cell) else text
    return cell


def _begins_like_a_formula(text: str) -> bool:
    """Returns whether a spreadsheet might run it: some skip invisible characters, or accept full-width signs."""
    if text[:1] in CONTROL:
        return True
    for char in unicodedata.normalize("NFKC", text):
        if not char.isspace() and unicodedata.category(char)[0] != "C":
            return char in FORMULA
    return False
