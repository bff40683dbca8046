"""Writes documents as A4 PDF files, with headings, repeated table headers, right-aligned numbers and page numbers.

Long names wrap within their column. Very long names are cut here, but not in other formats. Documents with wide tables
are in landscape. A character that the font lacks is shown as a box.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pymupdf_fonts
from fpdf import FPDF
from fpdf.enums import TableBordersLayout, TableCellFillMode, TextEmphasis, XPos, YPos
from fpdf.fonts import FontFace, TTFFont

from portal.reports.formats.document import NUMERIC, Cell, Column, Document, Kind, Table, cut_note, shown

FONT = "FiraGO"
FONTS = {"": "figo", "B": "figbo"}
UNUSED = ("GDEF", "GPOS", "GSUB")  # tables of fonts that fpdf2 leaves out of its files
SIZES = (8.0, 7.0, 6.0, 5.0)  # font sizes in tables, in points
LINE = 4.2  # height of a line of the largest size, in mm
MARGIN, PADDING = 15.0, 1.2  # in mm
LEAST_TEXT = 18.0  # width in mm that every text column gets, unless its texts need less
MOST_UPRIGHT = 10  # a document with more columns in a table is in landscape
# Limits per cell. Text that wraps between words may need twice as many lines, for which a page must have room.
MOST_LINES, MOST_LETTERS = 16, 2000
MOST_ROWS = 1000  # per table: nobody reads more rows, and each row takes time
MUTED = (90, 96, 110)


def pdf_of(document: Document) -> bytes:
    """Returns the document as the bytes of a PDF file. Only the first `MOST_ROWS` rows of each table are included."""
    with TemporaryDirectory(prefix="fairlot-fonts-") as folder:  # fpdf2 reads fonts from files only
        lies = any(len(table.columns) > MOST_UPRIGHT for table in document.tables)
        pdf = _PagedPdf(document.title, "landscape" if lies else "portrait")
        for style, name in FONTS.items():
            path = Path(folder, f"{name}.ttf")
            path.write_bytes(pymupdf_fonts.myfont(name))
            pdf.add_font(FONT, style, path)
        _drop_layout(pdf)
        pdf.add_page()
        _write_head(pdf, document)
        for table in document.tables:
            _write_table(pdf, table, document.zone)
        return bytes(pdf.output())


def _drop_layout(pdf: FPDF) -> None:
    """Removes the tables of the fonts that describe how letters combine. No document contains these tables, but fpdf2
    would decode them, which takes more than half of the time of a short document."""
    for font in pdf.fonts.values():
        if isinstance(font, TTFFont):
            for name in UNUSED:
                if name in font.ttfont:
                    del font.ttfont[name]


class _PagedPdf(FPDF):
    """A PDF file whose pages have the title and the page number at the bottom."""

    def __init__(self, title: str, orientation: Literal["landscape", "portrait"]) -> None:
        super().__init__(orientation=orientation, format="A4")
        self.about = title
        self.set_title(title)
        self.set_margins(MARGIN, MARGIN)
        self.set_auto_page_break(auto=True, margin=18)

    def footer(self) -> None:
        self.set_y(-13)
        self.set_font(FONT, "", 7)
        self.set_text_color(*MUTED)
        right = f"Page {self.page_no()} of {{nb}}"
        space = self.epw - 30
        self.cell(space, 5, _cut(self, self.about, space))
        self.cell(30, 5, right, align="R")
        self.set_text_color(0)


def _write_head(pdf: FPDF, document: Document) -> None:
    pdf.set_font(FONT, "B", 17)
    pdf.multi_cell(0, 8, document.title, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(2)
    pdf.set_font(FONT, "", 9)
    for label, text in document.facts:
        pdf.set_text_color(*MUTED)
        pdf.cell(42, 5, label)
        pdf.set_text_color(0)
        pdf.multi_cell(0, 5, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def _write_table(pdf: FPDF, table: Table, zone: tzinfo | None) -> None:
    def told(row: Sequence[Cell]) -> list[str]:
        return [_one_line(shown(*pair, zone)) for pair in zip(table.columns, row, strict=True)]

    there = iter(table.rows)
    rows = [told(row) for row in islice(there, MOST_ROWS)]
    more = table.more + sum(1 for _ in there)
    note = f"{cut_note(len(rows), more)} {table.note}".strip()
    totals = [told(row) for row in table.totals]
    pdf.ln(5)
    if pdf.will_page_break(12 + 3 * LINE):
        pdf.add_page()  # otherwise a heading could stand alone at the end of a page
    pdf.set_font(FONT, "B", 11)
    pdf.multi_cell(0, 6, table.title, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    if note:
        pdf.set_font(FONT, "", 8)
        pdf.set_text_color(*MUTED)
        pdf.multi_cell(0, 4.5, note, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        pdf.set_text_color(0)
    pdf.ln(1)
    if not rows:
        pdf.set_font(FONT, "", SIZES[0])
        pdf.cell(0, LINE, "Nothing in this period.", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        return
    size, widths = _fit(pdf, table.columns, [*rows, *totals])

    def cut(row: Sequence[str]) -> list[str]:
        return [
            _cut(pdf, text, MOST_LINES * (width - 2 * PADDING))
            for text, width in zip(row, widths, strict=True)
        ]

    with pdf.table(
        col_widths=tuple(widths),
        text_align=tuple("RIGHT" if column.kind in NUMERIC else "LEFT" for column in table.columns),
        headings_style=FontFace(emphasis=TextEmphasis.B, fill_color=(236, 239, 244)),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
        cell_fill_mode=TableCellFillMode.NONE,
        line_height=LINE * size / SIZES[0],
        padding=(0.6, PADDING),
    ) as grid:
        grid.row([column.heading for column in table.columns])
        for row in rows:
            grid.row(cut(row))
        for row in totals:
            grid.row(cut(row), style=FontFace(emphasis=TextEmphasis.B))


def _fit(pdf: FPDF, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
    """Returns the font size of a table in points, and the widths of its columns in mm.

    The size is the largest of `SIZES` at which the table fits. The table fits if two conditions are met:

    - All numbers and times are on one line.
    - Each text column gets at least LEAST_TEXT mm, or the width that its longest text needs if this is less.

    Short text columns then get the width that they need, and long ones share the rest equally. If the table fits at no
    size, the smallest size is used, and all columns are narrowed.
    """
    texts = [place for place, column in enumerate(columns) if column.kind == Kind.TEXT]
    for size in SIZES:
        widths = _wanted(pdf, columns, rows, size)
        wanted = {place: widths[place] for place in texts}
        rest = pdf.epw - sum(widths) + sum(wanted.values())
        if rest >= sum(min(width, LEAST_TEXT) for width in wanted.values()):
            break
    else:
        least = 2 * PADDING + 2  # a narrower column could show nothing
        spare = pdf.epw - least * len(widths)
        return size, [least + width * spare / sum(widths) for width in widths]
    for left, place in enumerate(sorted(texts, key=wanted.__getitem__)):
        widths[place] = min(wanted[place], rest / (len(texts) - left))
        rest -= widths[place]
    for place in texts:
        widths[place] += rest / len(texts)
    return size, widths


def _wanted(pdf: FPDF, columns: Sequence[Column], rows: Sequence[Sequence[str]], size: float) -> list[float]:
    """Returns, for each column, the width in mm that it needs if no cell has a line break.

    The heading of a number column may have line breaks between words, so only its longest word counts.
    """
    pdf.set_font(FONT, "B", size)
    wanted = []
    for place, column in enumerate(columns):
        words = column.heading.split() if column.kind in NUMERIC else [column.heading]
        texts = [*(row[place] for row in rows), *words]
        wanted.append(max(pdf.get_string_width(text) for text in texts) + 2 * PADDING + 1)
    pdf.set_font(FONT, "", size)
    return wanted


def _one_line(text: str) -> str:
    """Returns the text as one line, with spaces in place of line breaks and tabs.

    Cuts the text to MOST_LETTERS, because a cell can show no more.
    """
    return re.sub(r"[\r\n\t\f\v]+", " ", text[:MOST_LETTERS] + "…" * (len(text) > MOST_LETTERS))


def _cut(pdf: FPDF, text: str, width: float) -> str:
    if pdf.get_string_width(text) <= width - 2:
        return text
    lengths = range(len(text))
    fits = bisect_left(
        lengths, True, key=lambda length: pdf.get_string_width(f"{text[: length + 1]}…") > width - 2
    )
    return f"{text[:fits]}…"
