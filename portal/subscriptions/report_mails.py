"""Composes mails with reports: the text, a link to the report's page, and the report as an attached file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.http import urlencode

from accounting.core.consistent_read import consistent_read
from accounting.core.wording import number
from accounting.ledger.heads import printed
from accounting.models import ReportSubscription, Tenant, User
from accounting.reports.capacity import capacity_report
from accounting.reports.usage import By, csv_lines
from portal.reports.capacity import capacity_document
from portal.reports.fairness import fairness_report
from portal.reports.fairness_tables import fairness_document
from portal.reports.formats import PERIOD, Document, in_format
from portal.reports.idle_tables import file_name as idle_file_name
from portal.reports.idle_tables import idle_document
from portal.reports.operations.tables import SUBJECTS, ReportRequest
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement.figures import statement_of
from portal.reports.statement.files import file_name, is_whole
from portal.reports.statement.tables import document_of
from portal.reports.unsettled import PROVISIONAL
from portal.reports.usage import UsageRequest, answer_to, largest_first, usage_document
from portal.reports.usage import file_name as usage_file_name
from portal.share.anomaly_tables import analyses_ended_in, document_of_analyses
from portal.share.periods import period_of_days
from portal.share.trade_book import file_name as trades_file_name
from portal.share.trade_book import trade_book
from portal.wording import money

Report = ReportSubscription.Report
PAGES: dict[str, str] = {Report.USAGE: "usage", Report.TRADES: "trades", Report.ANOMALIES: "share_anomalies"}


@dataclass(frozen=True)
class ReportMail:
    """A mail with a report.

    `page`: the path and query of the report's page. `name`: the name of the attached file, without extension. `alone`:
    the key of the table that an attached CSV file contains; "" for all tables.
    """

    period: ReportPeriod
    lines: Sequence[str]
    page: str
    document: Document
    name: str
    alone: str = ""
    # yields the lines of the CSV file, if they differ from those of `document`
    csv: Callable[[], Iterable[str]] | None = None

    def content(self, form: str) -> bytes:
        """Returns the bytes of the attached file in the format `form`. They are the same as in a download from the
        report's page."""
        if form == "csv" and self.csv is not None:
            return "".join(self.csv()).encode()
        return in_format(self.document, form, alone=self.alone)


def mail_of(subscription: ReportSubscription, period: ReportPeriod) -> ReportMail:
    if subscription.report == Report.STATEMENT:
        assert subscription.tenant is not None  # noqa: S101 - the database says so
        whole = is_whole(subscription.form) and subscription.form != subscription.Form.LINK
        return _statement(subscription.user, subscription.tenant, period, whole=whole)
    if subscription.report in OF_TEAMS:
        return OF_TEAMS[subscription.report](subscription, period)
    report = subscription.report
    document = _document(report, period)
    return _mail(
        period,
        document,
        f"{page_of(report)}?{urlencode(_dates(period))}",
        f"fairlot-{report}-{period.in_a_name}",
        alone=document.tables[0].key if len(document.tables) == 1 else "",
    )


def _mail(
    period: ReportPeriod,
    document: Document,
    page: str,
    name: str,
    *,
    alone: str = "",
    csv: Callable[[], Iterable[str]] | None = None,
) -> ReportMail:
    """Returns a mail with a report. Its text consists of the document's title, period and facts.

    - `document`: the report, which the attached file contains.
    - `page`: the path and query of the report's page.
    - `name`: the name of the attached file, without extension.
    - `alone`: the key of the table that an attached CSV file contains; "" for all tables.
    - `csv`: a function that yields the lines of an attached CSV file, if they differ from those of `document`.
    """
    told = [f"    {label}: {text}" for label, text in document.facts if label != PERIOD]
    return ReportMail(
        period,
        [
            f"{document.title}, {period.in_words}",
            *([""] if told else []),
            *told,
        ],
        page,
        document,
        name,
        alone,
        csv,
    )


def _of_team(subscription: ReportSubscription, **more: str) -> str:
    """Returns the path of the subscription's report page, with a query that selects the subscription's team.

    `more` are further parameters of the query.
    """
    tenant = subscription.tenant
    query = ({"team": tenant.slug} if tenant else {}) | more
    return f"{page_of(subscription.report)}?{urlencode(query)}"


@consistent_read()
def _usage(of: ReportSubscription, period: ReportPeriod) -> ReportMail:
    question = UsageRequest(of.user, of.tenant, By(of.by), period, of.label)
    report = largest_first(answer_to(question))
    more = {"by": of.by} | ({"label": of.label} if of.label else {})
    return _mail(
        period,
        usage_document(question, report),
        _of_team(of, **_dates(period), **more),
        usage_file_name(question.by, period),
        csv=lambda: csv_lines(report),
    )


def _fairness(of: ReportSubscription, period: ReportPeriod) -> ReportMail:
    document = fairness_document(fairness_report(of.user, period, tenant=of.tenant))
    name = f"fairlot-fairness-{period.in_a_name}"
    return _mail(period, document, _of_team(of, **_dates(period)), name)


def _idle(of: ReportSubscription, period: ReportPeriod) -> ReportMail:
    document = idle_document(of.user, period, of.tenant)
    return _mail(period, document, _of_team(of, **_dates(period)), idle_file_name(period))


def _trades(of: ReportSubscription, period: ReportPeriod) -> ReportMail:
    days = period_of_days(period)
    document = trade_book(of.user, days, tenant=of.tenant)
    page = _of_team(of, **_dates(period))
    return _mail(period, document, page, trades_file_name(days), alone="trades")


def _anomalies(of: ReportSubscription, period: ReportPeriod) -> ReportMail:
    """Returns a mail about sharing anomalies, with the results of one analysis for each cluster.

    This is the cluster's latest finished analysis among those whose analysed time ended in `period`.
    """
    analyses = analyses_ended_in(of.user, period.begins, period.ends)
    document = document_of_analyses(of.user, analyses, period, tenant=of.tenant)
    more = {"cluster": analyses[0].cluster.name, "analysis": str(analyses[0].pk)} if analyses else {}
    name = f"fairlot-anomalies-{period.in_a_name}"
    return _mail(period, document, _of_team(of, **more), name)


OF_TEAMS: dict[str, Callable[[ReportSubscription, ReportPeriod], ReportMail]] = {
    Report.USAGE: _usage,
    Report.FAIRNESS: _fairness,
    Report.IDLE: _idle,
    Report.TRADES: _trades,
    Report.ANOMALIES: _anomalies,
}


def page_of(report: str) -> str:
    """Returns the path of the page that shows a report."""
    if report in SUBJECTS:
        return reverse("usage_operations_subject", args=[report])
    return reverse(PAGES.get(report, f"usage_{report}"))


def _document(report: str, period: ReportPeriod) -> Document:
    """Returns one of the reports for operators as a document. It covers all clusters."""
    if report == Report.CAPACITY:
        return capacity_document(None, period, capacity_report(period.begins, period.ends, book=None))
    return SUBJECTS[report][1](ReportRequest(period, None))


def _statement(user: User, tenant: Tenant, period: ReportPeriod, *, whole: bool) -> ReportMail:
    statement = statement_of(user, tenant, period, whole=whole)
    hours = number(float(statement.gpu_seconds) / 3600)
    wasted = number(float(statement.waste.wasted) / 3600)
    return ReportMail(
        period,
        [
            f"Statement of {tenant.name}, {period.in_words}, number {statement.number}:",
            "",
            *(f"    {money(total.cost, total.currency)}" for total in statement.totals),
            f"    {hours} GPU-hours; {wasted} of these GPU-hours were wasted",
            *(["", PROVISIONAL] if statement.is_provisional else []),
            *(["", "Ledger head:", printed(statement.head)] if statement.head else []),
        ],
        f"{reverse('usage_statement')}?{urlencode({'team': tenant.slug} | _dates(period))}",
        document_of(statement),
        file_name(tenant, period),
    )


def _dates(period: ReportPeriod) -> dict[str, str]:
    return {"period": GIVEN, "from": str(period.first), "to": str(period.last)}
