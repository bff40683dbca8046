"""Documents as CSV and as what becomes JSON: for programs, exact and unrounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accounting.csv_lines import csv_line, harmless
from portal.reports.formats.document import Cell, Document, Table, told


def csv_of_table(table: Table) -> Iterator[str]:
    """Lines: the columns' keys, then the rows. Nothing else, so that programs may add them up."""
    yield csv_line([column.key for column in table.columns])
    for row in table.rows:
        yield csv_line([_cell(cell) for cell in row])


def csv_of(document: Document) -> Iterator[str]:
    """Lines of all tables one below the other, each under its key, an empty line between two."""
    for place, table in enumerate(document.tables):
        if place:
            yield csv_line([])
        if document.has_keys:
            yield csv_line([table.key])
        yield from csv_of_table(table)
        if table.totals is not None:
            yield csv_line([_cell(cell) for cell in table.totals])


def json_of(document: Document) -> dict[str, Any]:
    """Title and facts, and of each table by its key the rows and totals as objects of the columns' keys."""
    return {
        "title": document.title,
        "facts": [{"label": label, "text": text} for label, text in document.facts],
        "tables": {table.key: _as_objects(table) for table in document.tables},
    }


def _as_objects(table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    return {
        "title": table.title,
        "rows": [dict(zip(keys, map(told, row), strict=True)) for row in table.rows],
        "totals": None if table.totals is None else dict(zip(keys, map(told, table.totals), strict=True)),
    }


def _cell(cell: Cell) -> object:
    # Only people's words are made harmless: the minus of a number is no formula.
    return harmless(cell) if isinstance(cell, str) else told(cell)
