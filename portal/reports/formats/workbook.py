"""Writes documents as XLSX files, with a sheet for each table. Numbers and dates are typed cells, and no cell is a
formula."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import date, datetime, tzinfo

from xlsxwriter import Workbook
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from portal.reports.formats.document import Cell, Column, Document, Kind, Table, in_unit

MOST_ROWS = 1_048_576  # the most rows of an XLSX sheet
MOST_TEXT = 32_767  # the most characters of an XLSX cell
WIDTHS = {
    Kind.TEXT: 28,
    Kind.ID: 12,
    Kind.NUMBER: 16,
    Kind.GPU_TIME: 16,
    Kind.MINUTES: 16,
    Kind.DURATION: 16,
    Kind.MONEY: 16,
    Kind.DATE: 12,
    Kind.MOMENT: 18,
    Kind.SECOND: 20,
}
# A translation table that replaces characters which are not allowed in the name of a sheet by spaces.
FORBIDDEN = str.maketrans(dict.fromkeys("[]:*?/\\'", " "))


def xlsx_of(document: Document) -> bytes:
    """Returns the document as the bytes of an XLSX file.

    Rows are written one by one to limit memory. A table with more rows than a sheet can have continues on another
    sheet.
    """
    file = io.BytesIO()
    with Workbook(file, {"constant_memory": True}) as book:
        styles = _Styles(book)
        if document.facts:
            _write_facts(book.add_worksheet(_sheet_name(book, "Summary")), document, styles)
        for table in document.tables:
            _Writer(book, table, styles, document.zone).write()
    return file.getvalue()


class _Styles:
    """The cell formats of a workbook. Each format is created once and then reused."""

    def __init__(self, book: Workbook) -> None:
        self._book = book
        self._made: dict[tuple[str, bool], Format] = {}
        self.title = book.add_format({"bold": True, "font_size": 14})

    def of(self, pattern: str, *, strong: bool = False) -> Format:
        key = pattern, strong
        if key not in self._made:
            properties = {"num_format": pattern} | ({"bold": True} if strong else {})
            self._made[key] = self._book.add_format(properties)
        return self._made[key]


def _write_facts(sheet: Worksheet, document: Document, styles: _Styles) -> None:
    sheet.set_column(0, 0, 24)
    sheet.set_column(1, 1, 60)
    sheet.write_string(0, 0, document.title, styles.title)
    for line, (label, text) in enumerate(document.facts, start=2):
        sheet.write_string(line, 0, label, styles.of("@", strong=True))
        sheet.write_string(line, 1, text[:MOST_TEXT])


class _Writer:
    """Writes one table to one sheet, or to several sheets if the table is too long."""

    def __init__(self, book: Workbook, table: Table, styles: _Styles, zone: tzinfo | None) -> None:
        self._book, self._table, self._styles, self._zone = book, table, styles, zone
        self._begin_sheet()

    def write(self) -> None:
        for row in self._table.rows:
            self._write_row(row)
        for row in self._table.totals:
            self._write_row(row, strong=True)
        if self._table.note and self._line + 1 < MOST_ROWS:
            self._sheet.write_string(self._line + 1, 0, self._table.note[:MOST_TEXT])

    def _begin_sheet(self) -> None:
        self._sheet, self._line = self._book.add_worksheet(_sheet_name(self._book, self._table.title)), 1
        self._sheet.freeze_panes(1, 0)
        for place, column in enumerate(self._table.columns):
            width = max(WIDTHS[column.kind], min(len(column.heading) + 2, 60))
            self._sheet.set_column(place, place, width)
            self._sheet.write_string(0, place, column.heading, self._styles.of("@", strong=True))

    def _write_row(self, row: Sequence[Cell], *, strong: bool = False) -> None:
        if self._line == MOST_ROWS:
            self._begin_sheet()
        for place, (column, cell) in enumerate(zip(self._table.columns, row, strict=True)):
            if cell is not None:
                self._write_cell(place, column, cell, strong=strong)
        self._line += 1

    def _write_cell(self, place: int, column: Column, cell: Cell, *, strong: bool) -> None:
        sheet, line, style = self._sheet, self._line, self._styles.of
        if isinstance(cell, str):
            sheet.write_string(line, place, cell[:MOST_TEXT], style("@", strong=strong))
        elif isinstance(cell, datetime):
            local = cell.astimezone(self._zone).replace(tzinfo=None)  # XLSX times have no time zone
            pattern = "yyyy-mm-dd hh:mm:ss" if column.kind == Kind.SECOND else "yyyy-mm-dd hh:mm"
            sheet.write_datetime(line, place, local, style(pattern, strong=strong))
        elif isinstance(cell, date):
            sheet.write_datetime(line, place, cell, style("yyyy-mm-dd", strong=strong))
        elif cell is not None:
            whole = "0" if column.kind == Kind.ID else "#,##0"
            pattern = whole + (f".{'0' * column.digits}" if column.digits else "")
            sheet.write_number(line, place, in_unit(column, cell), style(pattern, strong=strong))


def _sheet_name(book: Workbook, title: str) -> str:
    """Returns a sheet name for `title` of at most 31 characters.

    It differs from the names of the workbook's other sheets, even if case is ignored.
    """
    taken = {sheet.get_name().casefold() for sheet in book.worksheets()}
    name, number = title.translate(FORBIDDEN)[:31].strip() or "Table", 1
    while name.casefold() in taken:
        number += 1
        end = f" ({number})"
        name = title.translate(FORBIDDEN)[: 31 - len(end)].strip() + end
    return name
