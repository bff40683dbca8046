"""Usage → Statement: what a team used and owes, as a page that reads like an invoice, and in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting.core.name_order import in_order
from accounting.models import ReportSubscription, Tenant
from portal.reports.by_mail import by_mail
from portal.reports.formats import TYPES, Document, Table, answer, csv_of_table, cut_note, shown
from portal.reports.formats.document import NUMERIC
from portal.reports.periods import LABELS, ReportPeriod, asked_period
from portal.reports.statement.chart import draw_days
from portal.reports.statement.figures import Statement, period_name, statement_of
from portal.reports.statement.tables import document_of

# Tables that are pictures first: the columns that name a row, and the one that is its bar.
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
    """A table as the page has it: texts with their headings and whether they are numbers, and bars of the largest."""

    table: Table
    rows: Sequence[Sequence[tuple[str, bool, str]]]
    totals: Sequence[Sequence[tuple[str, bool, str]]]
    bars: Sequence[tuple[str, Decimal, str]]
    most: Decimal
    more: int  # rows that are no bars
    note: str


@require_safe
def statement(request: HttpRequest) -> HttpResponse:
    tenants = list(Tenant.objects.visible_to(request.user).order_by("path"))
    if not tenants:
        return render(request, "reports/statement_of_nobody.html")
    tenant, period = read_request(request, is_page=True)
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
            figures.days, period.first, min(period.last, figures.at.astimezone(period.zone).date())
        ),
        "held": _parts(figures),
    }
    context |= by_mail(request.user, ReportSubscription.Report.STATEMENT, tenant)
    return render(request, "reports/statement.html", context)


@require_safe
def statement_file(request: HttpRequest, form: str) -> HttpResponse:
    """The whole statement as a file; as CSV with `part` one table of it."""
    tenant, period = read_request(request)
    document = document_of(statement_of(request.user, tenant, period, whole=is_whole(form)))
    return file_of(document, form, file_name(tenant, period), part=request.GET.get("part", ""))


def is_whole(form: str) -> bool:
    """Whether a file of this format has all rows: a PDF is read by people, as the page is."""
    return form != "pdf"


def file_of(document: Document, form: str, name: str, *, part: str = "") -> HttpResponse:
    if not part or form != "csv":
        return answer(document, form, name)
    table = next((table for table in document.tables if table.key == part), None)
    if table is None:
        raise Http404
    return HttpResponse(
        "".join(csv_of_table(table, document.zone)),
        content_type=TYPES["csv"],
        headers={"Content-Disposition": f'attachment; filename="{name}-{part}.csv"'},
    )


def file_name(tenant: Tenant, period: ReportPeriod) -> str:
    return f"fairlot-statement-{tenant.slug}-{period_name(period)}"


def read_request(request: HttpRequest, *, is_page: bool = False) -> tuple[Tenant, ReportPeriod]:
    """The team, or the first that the user may see, and the period; 404 for a team that the user may not see."""
    tenants = Tenant.objects.visible_to(request.user).order_by("path")
    slug = request.GET.get("team", "")
    tenant = get_object_or_404(tenants, slug=slug) if slug else tenants.first()
    if tenant is None:
        raise Http404
    return tenant, asked_period(request, is_page=is_page)


def _shown(table: Table, document: Document) -> Shown:
    def texts(row: Sequence[object]) -> list[tuple[str, bool, str]]:
        return [
            (shown(column, cell, document.zone), column.kind in NUMERIC, column.heading)
            for column, cell in zip(table.columns, row, strict=True)
        ]

    rows = list(table.rows)
    bars: list[tuple[str, Decimal, str]] = []
    if table.key in PICTURES:
        names, size = PICTURES[table.key]
        largest = sorted(rows, key=lambda row: -row[size])[:BARS]
        bars = [
            (" ".join(row[at] for at in names), row[size], shown(table.columns[size], row[size]))
            for row in largest
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
    """Of each generation the parts of a bar: class, word, GPU-seconds, where it begins and how wide it is."""
    most = max((one.held for one in figures.held), default=Decimal(0))
    found = []
    for one in figures.held:
        at, parts = Decimal(0), []
        for name, word in (("busy", "Busy"), ("idle", "Idle"), ("assembling", "Assembling")):
            seconds = getattr(one, name)
            if seconds > 0 and most:
                parts.append((name, word, seconds, f"{at / most * 100:.3f}%", f"{seconds / most * 100:.3f}%"))
            at += max(seconds, Decimal(0))
        found.append((one.generation, parts))
    return found
