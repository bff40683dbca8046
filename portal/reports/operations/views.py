"""The page Usage → Operations, for operators. It shows the same figures as the CSV, XLSX, PDF and JSON files."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import by_name
from accounting.core.wording import duration
from portal.access import permitted
from portal.reports.by_mail import by_mail
from portal.reports.formats import Cell, Column, Document, Kind, Table, cut_note, shown
from portal.reports.formats.document import NUMERIC
from portal.reports.operations.files import OF_ONE_CLUSTER, operations_in_format, read_operations
from portal.reports.operations.pictures import (
    demand_marks,
    draw_demand,
    draw_week,
    heat_marks,
    node_cells,
    waste_parts,
)
from portal.reports.operations.tables import SUBJECTS, TOP, WASTE_WORDS, ReportRequest
from portal.reports.periods import LABELS
from portal.templatetags.fairlot import gpu_hours
from portal.user_request import UserRequest
from scheduling.models import Cluster

LONG = 24  # characters from which on a text may wrap


@dataclass(frozen=True)
class ShownCell:
    heading: str
    text: str
    is_number: bool
    href: str = ""

    @property
    def style(self) -> str:
        """Returns the CSS class of the cell: `number` for a number, `break` for a long text that may wrap, or else
        `nowrap`."""
        return "number" if self.is_number else "break" if len(self.text) > LONG else "nowrap"


@dataclass(frozen=True)
class ShownTable:
    key: str
    title: str
    headings: list[tuple[str, bool]]
    rows: list[list[ShownCell]]
    totals: list[list[ShownCell]]
    note: str


@require_safe
@permitted("report.all")
@consistent_read()
def operations(request: UserRequest, subject: str = "use") -> HttpResponse:
    asked, document = read_operations(request.GET, subject, page=request.GET.get("page", "1"))
    context = {
        "subject": subject,
        "subjects": {key: label for key, (label, _) in SUBJECTS.items()},
        "clusters": list(Cluster.objects.order_by(*by_name("name"))) if subject in OF_ONE_CLUSTER else [],
        "cluster": asked.cluster,
        "period": asked.period,
        "periods": LABELS,
        "document": document,
        "forms": ("pdf", "xlsx", "csv"),  # the page has no link to JSON, which is for programs
        "now": now_from_database(),
        **by_mail(request.user, subject),
    }
    pictures = _pictures(subject, asked)
    # The tables of nodes and teams show the same rows as the chart above them; files have all rows.
    page = pictures.get("page")
    shown = {"waste_teams": slice(TOP), "waste_users": slice(TOP)}
    if page is not None:
        shown["nodes"] = slice(max(page.start_index() - 1, 0), page.end_index())
    tables = [as_shown(table, document, shown.get(table.key, slice(None))) for table in document.tables]
    return render(request, "reports/operations/page.html", context | pictures | {"tables": tables})


def _pictures(subject: str, asked: ReportRequest) -> dict[str, Any]:
    if subject == "use":
        return {
            "week": draw_week(asked.week),
            "demand": asked.demand,
            "chart": draw_demand(asked.demand),
            "marks": demand_marks(asked.demand),
        }
    if subject == "nodes":
        gpus = defaultdict(list)
        for one in asked.gpus:
            gpus[one.node.node_id].append(one)
        return {
            "page": asked.page_of_nodes,
            "nodes": [
                (node, cells, heat_marks(cells, 18))
                for node in asked.page_of_nodes
                for cells in [node_cells(gpus[node.node_id])]
            ],
        }
    if subject == "waste":
        teams = [one for one in asked.waste.tenants if one.wasted][:TOP]
        most = float(max((one.wasted for one in teams), default=0))
        return {
            "causes": WASTE_WORDS,
            "teams": [(one, waste_parts(one, most)) for one in teams],
        }
    return {}


@require_safe
@permitted("report.all")
def operations_file(request: UserRequest, subject: str, form: str) -> HttpResponseBase:
    return operations_in_format(request.GET, subject, form)


def as_shown(table: Table, document: Document, rows: slice = slice(None)) -> ShownTable:
    """Converts the given rows of a table for the page.

    GPU-seconds become GPU-hours, seconds become durations, and jobs become links.
    """
    headings = [(_heading(column), column.kind in NUMERIC) for column in table.columns]
    every = list(table.rows)
    some = every[rows]
    left_out = cut_note(len(some), len(every) + table.more - len(some))
    return ShownTable(
        table.key,
        table.title,
        headings,
        [_cells(table, row, document) for row in some],
        [_cells(table, row, document) for row in table.totals],
        f"{table.note} {left_out}".strip(),
    )


def _cells(table: Table, row: Any, document: Document) -> list[ShownCell]:
    return [_cell(column, cell, document) for column, cell in zip(table.columns, row, strict=True)]


def _cell(column: Column, cell: Cell, document: Document) -> ShownCell:
    heading, is_number = _heading(column), column.kind in NUMERIC
    if cell is None:
        return ShownCell(heading, "–", is_number)
    if column.kind == Kind.GPU_TIME and not isinstance(cell, str):
        return ShownCell(heading, gpu_hours(cell), is_number)  # type: ignore[arg-type]
    if column.kind == Kind.DURATION and not isinstance(cell, str):
        return ShownCell(heading, duration(float(cell)), is_number)  # type: ignore[arg-type]
    href = reverse("job", args=[int(str(cell))]) if column.key == "job_id" else ""
    return ShownCell(heading, shown(column, cell, document.zone), is_number, href)


def _heading(column: Column) -> str:
    """Returns a column's heading for the page.

    The unit of a duration column is left out, because each of its cells already shows a unit.
    """
    return column.heading.removesuffix(", s") if column.kind == Kind.DURATION else column.heading
