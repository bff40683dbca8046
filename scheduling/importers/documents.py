"""The documents of a foreign text as fields, with paths that name the document if there are several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.importers.fields import Fields
from scheduling.importers.reading import Document, Source, Yaml, leaves, remark_doubtful, step
from scheduling.importers.report import Report


def fields_of(source: Source, report: Report, version: Yaml = Yaml.V1_2) -> list[Fields]:
    """Returns each document as fields. With several documents, the paths begin with "document 1" and so on.

    Raises Unreadable if the text is not YAML.
    """
    documents = source.documents(version)
    if len(documents) > 1:
        documents = [_below(document, f"document {at}") for at, document in enumerate(documents, 1)]
    found = []
    for at, document in enumerate(documents, 1):
        remark_doubtful(report, document)
        path = f"document {at}" if len(documents) > 1 else ""
        if isinstance(document.data, dict):
            found.append(Fields(document.data, path, document, report))
        elif isinstance(document.data, list) and all(isinstance(one, dict) for one in document.data):
            found += [Fields(one, step(path, at), document, report) for at, one in enumerate(document.data)]
        else:
            report.refused_at(path, "Here a mapping is expected.")
    return found


def drop_the_rest(report: Report, fields: Fields) -> None:
    """Adds a line for each field inside `fields` that has none yet."""
    report.drop_the_rest(leaves(fields.data, fields.path))


def drop_each(fields: Fields, consequences: Mapping[str, str]) -> None:
    """Adds a line with its consequence for each field that is left out."""
    for name, text in consequences.items():
        if name in fields.data and not fields.report.covers(fields.at(name)):
            fields.report.dropped(fields.at(name), text)


def _below(document: Document, path: str) -> Document:
    return Document(
        document.data,
        _moved(document.raw, path),
        _moved(document.lines, path),
        _moved(document.doubtful, path),
    )


def _moved(found: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {f"{path}{'' if key.startswith('[') else '.'}{key}" if key else path: found[key] for key in found}
