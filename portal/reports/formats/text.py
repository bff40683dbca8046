"""Documents as CSV and JSON: for programs, exact and unrounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from accounting.core.csv_lines import csv_line, harmless
from portal.reports.formats.document import Cell, Document, Table, told


def csv_of_table(table: Table, zone: tzinfo | None = None) -> Iterator[str]:
    """Yields lines: the columns' keys, then the rows, and nothing else, so that programs may add them."""
    yield csv_line([column.key for column in table.columns])
    for row in table.rows:
        yield csv_line([_cell(cell, zone) for cell in row])


def csv_of(document: Document) -> Iterator[str]:
    """Yields the lines of all tables, each under its key, with an empty line between two."""
    for place, table in enumerate(document.tables):
        if place:
            yield csv_line([])
        if document.has_keys:
            yield csv_line([table.key])
        yield from csv_of_table(table, document.zone)
        for row in table.totals:
            yield csv_line([_cell(cell, document.zone) for cell in row])


def json_of(document: Document) -> dict[str, Any]:
    """Returns title and facts, and by key of each table the rows and totals as objects of the columns' keys."""
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
    """Yields the same as text, row by row, because there may be more than fit into memory."""
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
    # Only people's texts are escaped: the minus of a number is no formula.
    return harmless(cell) if isinstance(cell, str) else told(cell, zone)
