"""The page Usage → Statement, in the form of an invoice: what a team used and what it owes. Also returns it as
files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from urllib.parse import urlencode

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting.core.name_order import in_order
from accounting.models import ReportSubscription, Tenant
from portal.reports.by_mail import by_mail
from portal.reports.formats import Document, Table, cut_note, shown
from portal.reports.formats.document import NUMERIC, Cell
from portal.reports.periods import LABELS
from portal.reports.statement.chart import draw_days
from portal.reports.statement.figures import Statement, statement_of
from portal.reports.statement.files import read_statement_query, statement_in_format
from portal.reports.statement.tables import document_of
from portal.user_request import UserRequest

# Tables with a chart, by key: the columns whose text labels a bar, and the column whose number is the bar's length.
PICTURES = {
    "generations": ([0], 1),
    "users": ([0], 1),
    "jobs": ([1], 2),
    "labels": ([0, 1], 2),
    "waste": ([0], 1),
}
BARS = 8


@dataclass(frozen=True)
class Shown:
    """A table as the page shows it. Each cell is a tuple (text, whether the cell is a number, heading of its column).

    `bars` contains the bars of the bar chart, which shows the rows with the largest values.
    """

    table: Table
    rows: Sequence[Sequence[tuple[str, bool, str]]]
    totals: Sequence[Sequence[tuple[str, bool, str]]]
    bars: Sequence[tuple[str, Decimal, str]]
    most: Decimal
    more: int  # number of rows without a bar
    note: str


@require_safe
def statement(request: UserRequest) -> HttpResponse:
    tenants = list(Tenant.objects.visible_to(request.user).order_by("path"))
    if not tenants:
        return render(request, "reports/statement_of_nobody.html")
    tenant, period = read_statement_query(request.user, request.GET, is_page=True)
    figures = statement_of(request.user, tenant, period)
    document = document_of(figures)
    context = {
        "tenants": in_order(tenants),
        "tenant": tenant,
        "period": period,
        "periods": LABELS,
        "statement": figures,
        "document": document,
        "sections": {table.key: _shown(table, document) for table in document.tables},
        "chart": draw_days(
            figures.days,
            period.first,
            min(period.last, figures.at.astimezone(period.zone).date()),
            jobs_of=lambda day: _usage_of(tenant, day, period.zone.key),
        ),
        "held": _parts(figures),
    }
    context |= by_mail(request.user, ReportSubscription.Report.STATEMENT, tenant)
    return render(request, "reports/statement.html", context)


@require_safe
def statement_file(request: UserRequest, form: str) -> HttpResponseBase:
    return statement_in_format(request.user, request.GET, form)


def _usage_of(tenant: Tenant, day: date, zone: str) -> str:
    """Returns the address of the team's usage by job on one day."""
    query = {"team": tenant.slug, "by": "job", "period": "dates", "from": day, "to": day, "zone": zone}
    return f"{reverse('usage')}?{urlencode(query)}"


def _shown(table: Table, document: Document) -> Shown:
    def texts(row: Sequence[Cell]) -> list[tuple[str, bool, str]]:
        return [
            (shown(column, cell, document.zone), column.kind in NUMERIC, column.heading)
            for column, cell in zip(table.columns, row, strict=True)
        ]

    rows = list(table.rows)
    bars: list[tuple[str, Decimal, str]] = []
    if table.key in PICTURES:
        names, size = PICTURES[table.key]
        sized = [(row, amount) for row in rows if isinstance(amount := row[size], Decimal)]
        bars = [
            (" ".join(str(row[at]) for at in names), amount, shown(table.columns[size], amount))
            for row, amount in sorted(sized, key=lambda one: -one[1])[:BARS]
        ]
    return Shown(
        table,
        [texts(row) for row in rows],
        [texts(row) for row in table.totals],
        bars,
        max((size for _, size, _ in bars), default=Decimal(0)),
        len(rows) - len(bars) + table.more,
        f"{cut_note(len(rows), table.more)} {table.note}".strip(),
    )


def _parts(figures: Statement) -> list[tuple[str, list[tuple[str, str, Decimal, str, str]]]]:
    """Returns, for each generation, its name and the parts of its bar. The bar shows how held GPU time was used.

    Each part is a tuple (class, label, GPU-seconds, start, width). The classes are busy, idle, and assembling (until
    all workers of a gang run). Start and width are CSS values in per cent of the longest bar.
    """
    most = max((one.held for one in figures.held), default=Decimal(0))
    found = []
    for one in figures.held:
        at, parts = Decimal(0), []
        for name, word in (("busy", "Busy"), ("idle", "Idle"), ("assembling", "Workers starting")):
            seconds = getattr(one, name)
            if seconds > 0 and most:
                parts.append((name, word, seconds, f"{at / most * 100:.3f}%", f"{seconds / most * 100:.3f}%"))
            at += max(seconds, Decimal(0))
        found.append((one.generation, parts))
    return found
