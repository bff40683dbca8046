"""Previews of a job's files on a page: the beginning of a text, the first rows of a table, or a picture.

A preview reads at most PREVIEW bytes. The kind of a picture follows from its content and not from its name. HTML and
SVG are shown as text, because they can contain programs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from scheduling.backends.base import Backend

PREVIEW = 256 * 1024  # bytes
LARGEST_IMAGE = 20 * 1024 * 1024
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 200, 30, 200
DELIMITERS = {".csv": ",", ".tsv": "\t"}
BINARY_LOOK = 8192  # bytes in which a NUL shows that a file is not a text


@dataclass(frozen=True)
class Table:
    """The first rows of a file of comma-separated values. All rows have as many cells as `head`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_cut: bool  # there are more rows, more columns or longer cells


@dataclass(frozen=True)
class Preview:
    """What a page shows of a file: a picture, a table, a text, or nothing for other kinds of files."""

    size: int
    age: float
    image: str = ""  # the media type
    table: Table | None = None
    text: str | None = None
    is_cut: bool = False  # the file is longer than the preview
    has_bad_bytes: bool = False  # the text has replacements for bytes that are not UTF-8


def preview_of(backend: Backend, job_id: int, path: str) -> Preview:
    """Returns the preview of a job's file. Raises NoSuchFile and FileUnreadable."""
    with closing(backend.open_file(job_id=job_id, path=path)) as opened:
        data = b""
        while len(data) < PREVIEW and (piece := opened.read(PREVIEW - len(data))):
            data += piece
        size, age = opened.size, opened.age
    image = image_type(data)
    if image and size <= LARGEST_IMAGE:
        return Preview(size, age, image=image)
    if image or b"\0" in data[:BINARY_LOOK]:
        return Preview(size, age)
    is_cut = size > len(data)
    text, has_bad_bytes = _decoded(data, is_cut=is_cut)
    ending = path[path.rfind(".") :].lower()
    table = table_of(text, DELIMITERS[ending], is_cut=is_cut) if ending in DELIMITERS else None
    return Preview(size, age, table=table, text=text, is_cut=is_cut, has_bad_bytes=has_bad_bytes)


def image_type(begin: bytes) -> str:
    """Returns the media type of a picture that begins with these bytes; "" for anything else, SVG included."""
    if begin.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if begin.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if begin.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP" else ""


def _decoded(data: bytes, *, is_cut: bool) -> tuple[str, bool]:
    """Returns the text, and whether it has replacements for bytes that are not UTF-8."""
    try:
        return data.decode("utf-8-sig"), False
    except UnicodeDecodeError as error:
        if (
            is_cut and error.end == len(data) and len(data) - error.start < 4
        ):  # only the last character is cut
            return _decoded(data[: error.start], is_cut=False)
    return data.decode("utf-8-sig", "replace"), True


def table_of(text: str, delimiter: str, *, is_cut: bool) -> Table | None:
    """Returns the first rows of a table; None if the text is no table.

    `is_cut`: the text does not end with the file, so its last line may be incomplete.
    """
    if is_cut:
        text = text[: text.rfind("\n") + 1]
    try:
        found = list(islice(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), MOST_ROWS + 2))
    except csv.Error:
        return None
    rows = [row for row in found if row]
    columns = max(map(len, rows), default=0)
    if columns < 2:
        return None
    shown = min(columns, MOST_COLUMNS)
    cells = [[cell[:LONGEST_CELL] for cell in row[:shown]] + [""] * (shown - len(row)) for row in rows]
    longer = any(len(cell) > LONGEST_CELL for row in rows for cell in row)
    more = is_cut or len(cells) > MOST_ROWS + 1 or columns > shown or longer
    return Table(cells[0], cells[1 : MOST_ROWS + 1], is_cut=more)
