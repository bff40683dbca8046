"""Writes documents as CSV and JSON for programs, with exact and unrounded figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from accounting.core.csv_lines import csv_line, escape_cell
from portal.reports.formats.document import Cell, Document, Table, told


def csv_of_table(table: Table, zone: tzinfo | None = None) -> Iterator[str]:
    """Yields the CSV lines of a table: a line with the columns' keys, then the rows.

    Leaves out the totals, because programs may add the rows up themselves.
    """
    yield csv_line([column.key for column in table.columns])
    for row in table.rows:
        yield csv_line([_cell(cell, zone) for cell in row])


def csv_of(document: Document) -> Iterator[str]:
    """Yields the CSV lines of all tables of a document with their totals. An empty line separates two tables.

    If the document has `has_keys`, a line with the table's key precedes each table.
    """
    for place, table in enumerate(document.tables):
        if place:
            yield csv_line([])
        if document.has_keys:
            yield csv_line([table.key])
        yield from csv_of_table(table, document.zone)
        for row in table.totals:
            yield csv_line([_cell(cell, document.zone) for cell in row])


def json_of(document: Document) -> dict[str, Any]:
    """Returns the document as a JSON object with `title`, `facts`, and `tables` by key.

    Each row and each row of totals is an object with the column keys as its keys.
    """
    return _head(document) | {
        "tables": {
            table.key: {
                "title": table.title,
                "rows": list(_as_objects(table, table.rows, document.zone)),
                "totals": list(_as_objects(table, table.totals, document.zone)),
            }
            for table in document.tables
        }
    }


def json_text_of(document: Document) -> Iterator[str]:
    """Yields the JSON object of `json_of` as text, row by row, because the rows may not fit into memory."""
    yield f'{_json(_head(document))[:-1]}, "tables": {{'
    for place, table in enumerate(document.tables):
        yield f'{"," if place else ""}\n{_json(table.key)}: {{"title": {_json(table.title)}, "rows": ['
        before = "\n"
        for row in _as_objects(table, table.rows, document.zone):
            yield f"{before}{_json(row)}"
            before = ",\n"
        yield f'], "totals": {_json(list(_as_objects(table, table.totals, document.zone)))}}}'
    yield "}}\n"


def _head(document: Document) -> dict[str, Any]:
    return {"title": document.title, "facts": json_of_facts(document.facts)}


def json_of_facts(facts: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"label": label, "text": text} for label, text in facts]


def _as_objects(
    table: Table, rows: Iterable[Sequence[Cell]], zone: tzinfo | None
) -> Iterator[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return (dict(zip(keys, (told(cell, zone) for cell in row), strict=True)) for row in rows)


def _json(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder)


def _cell(cell: Cell, zone: tzinfo | None) -> object:
    # Only texts are escaped, since users may have written a formula; the minus sign of a number begins none.
    return escape_cell(cell) if isinstance(cell, str) else told(cell, zone)
