"""The documents of a foreign text as fields, and the consequences of fields that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.importers.credentials import redacted
from scheduling.importers.fields import Fields
from scheduling.importers.reading import Source, Yaml, leaves, step
from scheduling.importers.report import Report


def fields_of(source: Source, report: Report, version: Yaml = Yaml.V1_2) -> list[Fields]:
    """Returns each document as fields; of a list of mappings, each mapping. Raises Unreadable if the text is not
    YAML."""
    found = []
    for document in source.documents(version):
        data, path = document.data, document.path
        if isinstance(data, dict):
            found.append(Fields(data, path, document, report))
        elif isinstance(data, list) and data and all(isinstance(one, dict) for one in data):
            found += [Fields(one, step(path, at), document, report) for at, one in enumerate(data)]
        else:
            report.refused_at(path, "Here a mapping is expected.")
    return found


def drop_each(fields: Fields, consequences: Mapping[str, str]) -> None:
    """Adds a line with its consequence for each field that is left out and has no line yet."""
    for name, text in consequences.items():
        path = fields.at(name)
        if name in fields.data and not all(
            fields.report.covers(leaf) for leaf in leaves(fields.data[name], path)
        ):
            fields.report.dropped(path, text)


def shown(value: str, most: int = 60) -> str:
    """Returns the beginning of a foreign value for a sentence, without credentials."""
    return redacted(" ".join(value.split()))[:most]


def first_of(source: Source) -> dict[str, Any]:
    """Returns the first mapping of a text: its first document, or the first value if that is a list. Returns an empty
    mapping if there is none."""
    if source.top:
        return source.top
    data = source.values[0] if source.values else None
    return data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
