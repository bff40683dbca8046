"""Walks through the mappings of a foreign document. It reads their fields, and the report says which were of the wrong
type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scheduling.importers.reading import Document, step, template_in, templated
from scheduling.importers.report import Report


@dataclass(frozen=True)
class Fields:
    """A mapping inside a foreign document, with its path.

    Reading a field does not report it: the converter adds the line that says what became of the field. At the end
    `Report.drop_the_rest` adds a line for each field that has none. A field of the wrong type is reported at once and
    then counts as missing.
    """

    data: dict[str, Any]
    path: str
    document: Document
    report: Report

    @classmethod
    def of(cls, document: Document, report: Report) -> Fields:
        return cls(document.data if isinstance(document.data, dict) else {}, document.path, document, report)

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def at(self, name: str) -> str:
        """Returns the path of a field, as the source of a line of the report."""
        return step(self.path, name)

    def get(self, name: str) -> Any:
        return self.data.get(name)

    def section(self, *names: str) -> Fields:
        """Returns the mapping at a path of names; an empty one if it is missing."""
        found = self
        for name in names:
            value = found.data.get(name)
            if value is not None and not isinstance(value, dict):
                found._wrong(name, "a mapping")
            found = Fields(
                value if isinstance(value, dict) else {}, found.at(name), self.document, self.report
            )
        return found

    def sections(self, name: str) -> list[Fields]:
        """Returns the mappings in a list of mappings; none if it is missing."""
        found = []
        for at, value in enumerate(self.items(name)):
            path = step(self.at(name), at)
            if isinstance(value, dict):
                found.append(Fields(value, path, self.document, self.report))
            else:
                self.report.refused_at(path, f"Here a mapping is expected, not {kind_of(value)}.")
        return found

    def items(self, name: str) -> list[Any]:
        """Returns the values of a list; none if it is missing."""
        value = self.data.get(name)
        if value is None or isinstance(value, list):
            return value or []
        self._wrong(name, "a list")
        return []

    def text(self, name: str, default: str = "") -> str:
        """Returns a text. A number or a boolean becomes the text that was written."""
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, dict | list):
            self._wrong(name, "a text")
            return default
        return self.written(self.at(name), value)

    def written(self, path: str, value: Any) -> str:
        """Returns the text that was written for the scalar `value` at `path`."""
        if value is None:
            return ""
        if isinstance(value, bool) and path not in self.document.raw:
            return "true" if value else "false"
        return self.document.raw.get(path, str(value))

    def texts(self, name: str) -> list[str]:
        """Returns the texts of a list of texts. A single text counts as a list of one."""
        value = self.data.get(name)
        if isinstance(value, str | int | float):
            return [self.text(name)]
        found = []
        for at, one in enumerate(self.items(name)):
            path = step(self.at(name), at)
            if isinstance(one, dict | list):
                self.report.refused_at(path, f"Here a text is expected, not {kind_of(one)}.")
            else:
                found.append(self.written(path, one))
        return found

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Returns a whole number, which may also be written as a text of digits."""
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, str) and (template := template_in(value)):
            self.report.refused_at(self.at(name), templated(template))
            return default
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 12:
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self._wrong(name, "a whole number")
        return default

    def flag(self, name: str) -> bool:
        """Returns whether a boolean field is true."""
        value = self.data.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        if str(value).lower() in {"true", "false"}:
            return str(value).lower() == "true"
        self._wrong(name, "true or false")
        return False

    def _wrong(self, name: str, expected: str) -> None:
        self.report.refused_at(self.at(name), f"Here {expected} is expected, not {kind_of(self.data[name])}.")


def kind_of(value: Any) -> str:
    """Returns the type of a value in words. Reports never repeat a value that may be confidential."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
    return "a mapping"
