"""Documents as PDF, A4: headings, tables whose heads repeat on each page, numbers on the right, page numbers.

Long names wrap within their column. A letter that the font does not have is shown as a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from pathlib import Path
from tempfile import TemporaryDirectory

import pymupdf_fonts
from fpdf import FPDF
from fpdf.enums import TableBordersLayout, TableCellFillMode, TextEmphasis, XPos, YPos
from fpdf.fonts import FontFace

from portal.reports.formats.document import NUMERIC, Column, Document, Table, shown

FONT = "FiraGO"
FONTS = {"": "figo", "B": "figbo"}
SIZE, LINE = 8, 4.2  # of tables, in points and in mm
MARGIN, PADDING = 15.0, 1.2  # in mm
LEAST_TEXT = 18.0  # what a column of text has at least, in mm
MUTED = (90, 96, 110)


def pdf_of(document: Document) -> bytes:
    """The file. Rows are all in memory: what may have a million of them is no letter."""
    with TemporaryDirectory(prefix="fairlot-fonts-") as folder:  # fpdf2 reads fonts from files only
        pdf = _Letter(document.title)
        for style, name in FONTS.items():
            path = Path(folder, f"{name}.ttf")
            path.write_bytes(pymupdf_fonts.myfont(name))
            pdf.add_font(FONT, style, path)
        pdf.add_page()
        _write_head(pdf, document)
        for table in document.tables:
            _write_table(pdf, table, document.zone)
        return bytes(pdf.output())


class _Letter(FPDF):
    """A page's foot says what it is and which of how many."""

    def __init__(self, title: str) -> None:
        super().__init__(format="A4")
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
    rows = [[shown(*pair, zone) for pair in zip(table.columns, row, strict=True)] for row in table.rows]
    totals = table.totals and [shown(*pair, zone) for pair in zip(table.columns, table.totals, strict=True)]
    pdf.ln(5)
    if pdf.will_page_break(12 + 3 * LINE):
        pdf.add_page()  # no heading alone at the end of a page
    pdf.set_font(FONT, "B", 11)
    pdf.multi_cell(0, 6, table.title, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    if table.note:
        pdf.set_font(FONT, "", 8)
        pdf.set_text_color(*MUTED)
        pdf.multi_cell(0, 4.5, table.note, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        pdf.set_text_color(0)
    pdf.ln(1)
    if not rows:
        pdf.set_font(FONT, "", SIZE)
        pdf.cell(0, LINE, "Nothing in this period.", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        return
    pdf.set_font(FONT, "", SIZE)
    with pdf.table(
        col_widths=_widths(pdf, table.columns, [*rows, *([totals] if totals else [])]),
        text_align=tuple("RIGHT" if column.kind in NUMERIC else "LEFT" for column in table.columns),
        headings_style=FontFace(emphasis=TextEmphasis.B, fill_color=(236, 239, 244)),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
        cell_fill_mode=TableCellFillMode.NONE,
        line_height=LINE,
        padding=(0.6, PADDING),
    ) as grid:
        grid.row([column.heading for column in table.columns])
        for row in rows:
            grid.row(row)
        if totals:
            grid.row(totals, style=FontFace(emphasis=TextEmphasis.B))


def _widths(pdf: FPDF, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[float, ...]:
    """In mm: each gets what it needs, the first text all that is left; where space is short, texts share it."""
    pdf.set_font(FONT, "B", SIZE)
    wanted = []
    for place, column in enumerate(columns):
        longest = max((row[place] for row in rows), key=pdf.get_string_width)
        words = column.heading.split() if column.kind in NUMERIC else [column.heading]
        wanted.append(max(pdf.get_string_width(text) for text in [longest, *words]) + 2 * PADDING + 1)
    pdf.set_font(FONT, "", SIZE)
    text = [place for place, column in enumerate(columns) if column.kind not in NUMERIC]
    if text and sum(wanted) <= pdf.epw:
        wanted[text[0]] += pdf.epw - sum(wanted)
        return tuple(wanted)
    rest = pdf.epw - sum(width for place, width in enumerate(wanted) if place not in text)
    asked = sum(wanted[place] for place in text)
    if text and rest >= LEAST_TEXT * len(text):
        least = min(LEAST_TEXT, rest / len(text))
        spare = rest - least * len(text)
        for place in text:
            wanted[place] = least + spare * wanted[place] / asked
    scale = pdf.epw / sum(wanted)
    return tuple(width * scale for width in wanted)


def _cut(pdf: FPDF, text: str, width: float) -> str:
    if pdf.get_string_width(text) <= width - 2:
        return text
    while text and pdf.get_string_width(f"{text}…") > width - 2:
        text = text[:-1]
    return f"{text}…"
