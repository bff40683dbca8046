"""What is sent of a report by mail: the letter's words, the page that has all of it, and the document of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.http import urlencode

from accounting.capacity_report import capacity_report
from accounting.models import ReportSubscription, Tenant, User
from portal.reports.capacity import capacity_document
from portal.reports.fairness import fairness_report
from portal.reports.fairness_tables import fairness_document
from portal.reports.formats import Document
from portal.reports.operations.tables import SUBJECTS, Asked
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement.figures import statement_of
from portal.reports.statement.tables import PROVISIONAL, document_of
from portal.reports.statement.views import file_name
from portal.wording import money, number

Report = ReportSubscription.Report


@dataclass(frozen=True)
class Letter:
    """`page` is a path with its query, `name` that of the file without ending; `alone` as `answer` has it."""

    period: ReportPeriod
    lines: Sequence[str]
    page: str
    document: Document
    name: str
    alone: str = ""


def letter_of(subscription: ReportSubscription, period: ReportPeriod) -> Letter:
    if subscription.tenant is not None:
        return _statement(subscription.user, subscription.tenant, period)
    report = subscription.report
    document = _document(report, subscription.user, period)
    told = [f"    {label}: {text}" for label, text in document.facts if label != "Period"]
    return Letter(
        period,
        [
            f"{document.title}, {period.first} to {period.last} ({period.zone.key})",
            *([""] if told else []),
            *told,
        ],
        f"{page_of(report)}?{urlencode(_dates(period))}",
        document,
        f"fairlot-{report}-{period.first}-{period.last}",
        alone=document.tables[0].key if len(document.tables) == 1 else "",
    )


def page_of(report: str) -> str:
    """The path of the page that shows it."""
    if report in SUBJECTS:
        return reverse("usage_operations_subject", args=[report])
    return reverse(f"usage_{report}")


def _document(report: str, user: User, period: ReportPeriod) -> Document:
    """Of all clusters."""
    if report == Report.CAPACITY:
        return capacity_document(None, period, capacity_report(period.begins, period.ends, book=None))
    if report == Report.FAIRNESS:
        return fairness_document(fairness_report(user, period))
    return SUBJECTS[report][1](Asked(period, None))


def _statement(user: User, tenant: Tenant, period: ReportPeriod) -> Letter:
    statement = statement_of(user, tenant, period)
    hours = number(float(statement.gpu_seconds) / 3600)
    wasted = number(float(statement.waste.wasted) / 3600)
    return Letter(
        period,
        [
            f"{tenant.name}, {period.first} to {period.last} ({period.zone.key}), number {statement.number}:",
            "",
            *(f"    {money(total.cost, total.currency)}" for total in statement.totals),
            f"    {hours} GPU-hours, of which {wasted} in vain",
            *(["", PROVISIONAL] if statement.is_provisional else []),
        ],
        f"{reverse('usage_statement')}?{urlencode({'team': tenant.slug} | _dates(period))}",
        document_of(statement),
        file_name(tenant, period),
    )


def _dates(period: ReportPeriod) -> dict[str, object]:
    return {"period": GIVEN, "from": period.first, "to": period.last}
