"""HTTP responses that download a document as a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile
from typing import IO, Self

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from portal.reports.formats.document import Document
from portal.reports.formats.text import csv_of, csv_of_table, json_text_of

IN_MEMORY, BLOCK = 4 * 1024 * 1024, 256 * 1024  # bytes
TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pdf": "application/pdf",
    "json": "application/json",
}


def in_format(document: Document, form: str, *, alone: str = "") -> bytes:
    """Returns the document as the bytes of a file. `form` is a key of `TYPES`; any other value raises ValueError.

    With `alone`, a CSV file contains only the table with this key: a header line and its rows, without totals.
    """
    match form:
        case "csv" | "json":
            return "".join(_text(document, form, alone)).encode()
        case "xlsx":
            # Its library, and that of PDF files, would take a quarter of the time in which each process starts.
            from portal.reports.formats.workbook import xlsx_of  # noqa: PLC0415

            return xlsx_of(document)
        case "pdf":
            from portal.reports.formats.pdf import pdf_of  # noqa: PLC0415 - as above

            return pdf_of(document)
    raise ValueError(f"Unknown format: {form}.")


def answer(document: Document, form: str, name: str, *, alone: str = "") -> HttpResponseBase:
    """Returns a response that downloads the document as a file. `form` is a key of `TYPES`.

    `name` is the file name without extension. It consists of letters, digits and hyphens. With `alone`, a CSV file
    contains only the table with this key.
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    if form not in ("csv", "json"):
        return HttpResponse(in_format(document, form), content_type=TYPES[form], headers=headers)
    # The whole file is written before the answer begins, because a download that fails half-way would look complete.
    with ExitStack() as closing:
        file = closing.enter_context(SpooledTemporaryFile(IN_MEMORY))
        for text in _text(document, form, alone):
            file.write(text.encode())
        length = file.tell()
        file.seek(0)
        if length <= IN_MEMORY:
            return HttpResponse(file.read(), content_type=TYPES[form], headers=headers)
        closing.pop_all()  # the answer closes the file
    headers["Content-Length"] = str(length)
    return StreamingHttpResponse(_Blocks(file), content_type=TYPES[form], headers=headers)


def csv_answer(lines: Iterable[str], name: str) -> HttpResponse:
    """Returns a response that downloads the lines of a CSV file. `name` is the file name without extension."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return HttpResponse("".join(lines), content_type=TYPES["csv"], headers=headers)


class _Blocks:
    """An asynchronous iterator over the blocks of a file, so that a response holds only one block in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.close = file.close

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if block := await sync_to_async(self._file.read)(BLOCK):
            return block
        raise StopAsyncIteration


def _text(document: Document, form: str, alone: str) -> Iterator[str]:
    if form == "json":
        return json_text_of(document)
    some = [table for table in document.tables if table.key == alone]
    return csv_of_table(some[0]) if some else csv_of(document)
