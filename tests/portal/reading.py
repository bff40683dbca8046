"""Reads XLSX, PDF and HTML files that Fairlot wrote, as spreadsheet programs, PDF viewers and browsers read them."""

from __future__ import annotations

import io
import zipfile
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from pypdf import PdfReader

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def sheets(content: bytes) -> dict[str, list[list[tuple[str, str]]]]:
    """Returns {sheet: rows} of an XLSX file. A row is a list of cells (kind, text); the kind is "n" or "inlineStr".

    Fails if a cell contains a formula.
    """
    book = zipfile.ZipFile(io.BytesIO(content))
    index = ET.fromstring(book.read("xl/workbook.xml"))  # noqa: S314 - a file that Fairlot made
    names = [sheet.get("name") for sheet in index.iter(f"{MAIN}sheet")]
    found = {}
    for number, name in enumerate(names, start=1):
        root = ET.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))  # noqa: S314 - the same
        assert not list(root.iter(f"{MAIN}f")), "a formula"
        found[str(name)] = [
            [(cell.get("t", "n"), "".join(cell.itertext())) for cell in row]
            for row in root.iter(f"{MAIN}row")
        ]
    return found


def text_of(content: bytes) -> str:
    """Returns the text of a PDF with single spaces, because line breaks within a cell cannot be recognised."""
    words = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(content)).pages)
    return " ".join(words.replace("\N{NO-BREAK SPACE}", "_").split()).replace("_", "\N{NO-BREAK SPACE}")


class _Tables(HTMLParser):
    """A parser that collects a page's tables by caption, as rows of cell texts. The first row is the heading."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._caption = ""
        self._into: str | None = None
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"th", "td"}:
            self._rows[-1].append("")
            self._into = "cell"
        elif tag == "caption":
            self._into = "caption"
        elif tag in {"svg", "title"}:
            self._hidden += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in {"th", "td", "caption"}:
            self._into = None
        elif tag in {"svg", "title"}:
            self._hidden -= 1
        elif tag == "table":
            assert self._caption not in self.found
            self.found[self._caption] = [[" ".join(cell.split()) for cell in row] for row in self._rows]

    def handle_data(self, data: str) -> None:
        if self._hidden or self._into is None:
            return
        if self._into == "caption":
            self._caption += data
        else:
            self._rows[-1][-1] += data


def tables_on(html: str) -> dict[str, list[list[str]]]:
    """Returns a page's tables by caption, as rows of visible cell texts. The first row is the heading."""
    parser = _Tables()
    parser.feed(html)
    return parser.found
