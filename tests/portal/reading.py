"""Reads files that Fairlot made, as their readers' programs would."""

from __future__ import annotations

import io
import zipfile
from xml.etree import ElementTree as ET

from pypdf import PdfReader

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def sheets(content: bytes) -> dict[str, list[list[tuple[str, str]]]]:
    """Of each sheet by its name the rows of cells: kind (n or inlineStr) and text. There must be no formula."""
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
    """The words of a PDF; each run of blanks is one, as no line is told from a wrapped one."""
    words = " ".join(page.extract_text() for page in PdfReader(io.BytesIO(content)).pages)
    return " ".join(words.replace("\N{NO-BREAK SPACE}", "_").split()).replace("_", "\N{NO-BREAK SPACE}")
