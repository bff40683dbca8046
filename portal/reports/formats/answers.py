"""A document as a file to download."""

from __future__ import annotations

from django.http import HttpResponse, JsonResponse

from portal.reports.formats.document import Document
from portal.reports.formats.pdf import pdf_of
from portal.reports.formats.text import csv_of, csv_of_table, json_of
from portal.reports.formats.workbook import xlsx_of

TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pdf": "application/pdf",
    "json": "application/json",
}


def in_format(document: Document, form: str, *, alone: str = "") -> bytes:
    """The file's content; `form` is a key of `TYPES`.

    Of CSV there is only the table of the key `alone` where that is given: a head and rows, which programs can add up.
    """
    match form:
        case "csv":
            some = [table for table in document.tables if table.key == alone]
            return "".join(csv_of_table(some[0]) if some else csv_of(document)).encode()
        case "xlsx":
            return xlsx_of(document)
        case "pdf":
            return pdf_of(document)
        case "json":
            return JsonResponse(json_of(document)).content
    raise ValueError(f"No such format: {form}.")


def answer(document: Document, form: str, name: str, *, alone: str = "") -> HttpResponse:
    """The file as an attachment. `name` is without ending, of letters, digits and hyphens."""
    return HttpResponse(
        in_format(document, form, alone=alone),
        content_type=TYPES[form],
        headers={"Content-Disposition": f'attachment; filename="{name}.{form}"'},
    )
