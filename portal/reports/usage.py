"""The usage report: the GPU time that was used and its cost. The page, the files and the API all show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from django.http.response import HttpResponseBase

from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.core.wording import to_the_minute, unknown_choice
from accounting.models import Tenant, User
from accounting.reports.usage import By, UsageReport, UsageRow, csv_lines, report_of
from accounting.usage.scope import Scope
from portal.reports.formats import PERIOD, STATE, Cell, Column, Document, Kind, Table, answer, csv_answer
from portal.reports.labels import label_keys, label_name
from portal.reports.periods import Query, ReportPeriod, WrongQuestion, asked_period
from portal.reports.scope import chosen_tenant
from portal.reports.unbooked import Unbooked, unbooked
from portal.reports.unsettled import PROVISIONAL, unsettled_of
from scheduling.models import JobLabel

ROWS_PER_PAGE = 100
GROUPS = {
    By.USER: "User",
    By.JOB: "Job",
    By.GENERATION: "GPU",
    By.DAY: "Day",
    By.LABEL: "Label",
    By.TENANT: "Team",
}


@dataclass(frozen=True)
class UsageRequest:
    """A reader's request for a usage report: team, grouping, period and label key.

    All queries for the report share one `scope`: the usage of the team in the period, as far as the reader may see it.
    """

    user: User
    tenant: Tenant | None
    by: By
    period: ReportPeriod
    label: str = ""  # the label key that the reader chose

    @cached_property
    def scope(self) -> Scope:
        return Scope(self.user, self.period.begins, self.period.ends, tenant=self.tenant)

    @cached_property
    def keys(self) -> list[str]:
        """Returns the label keys by which the reader can group the report."""
        return label_keys(self.scope.tenants)

    @property
    def key(self) -> str:
        """Returns the label key that the reader chose, or else the first label key; "" if there are no label keys."""
        return self.label or next(iter(self.keys), "")

    def unbooked(self) -> Unbooked:
        return unbooked(self.scope.tenants, self.period.begins, self.period.ends)


@consistent_read()
def usage_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns the usage report as a file with all rows and exact figures. `form` is the file format.

    A CSV file is for programs, so it has ids and no totals.
    """
    question = read_question(user, query)
    report, name = largest_first(answer_to(question)), file_name(question.by, question.period)
    if form != "csv":
        return answer(usage_document(question, report), form, name)
    return csv_answer(csv_lines(report), name)


def largest_first(report: UsageReport) -> UsageReport:
    """Returns the report with its rows sorted as on the page: by GPU-seconds, largest first.

    A PDF needs this order because it has only the first rows. A report by day stays sorted by day.
    """
    if By.DAY in report.by:
        return report
    return replace(report, rows=tuple(sorted(report.rows, key=lambda row: -row.gpu_seconds)))


def file_name(by: By, period: ReportPeriod) -> str:
    """Returns the name of the report's file, without extension."""
    return f"fairlot-usage-{by}-{period.in_a_name}"


def usage_document(question: UsageRequest, report: UsageReport) -> Document:
    """Returns the report as a document: its rows, and the totals for each currency."""
    by = question.by
    names = NAMES.get(by, [Column(by, question.key if by == By.LABEL else GROUPS[by])])
    return Document(
        title=f"Usage by {GROUPS[by] if by == By.GENERATION else GROUPS[by].lower()}",
        facts=usage_facts(question, report),
        tables=[
            Table(
                "usage",
                "Usage",
                [*names, *AMOUNTS],
                [(*_names(row, by), *_amounts(row)) for row in report.rows],
                totals=[("Total", *[None] * (len(names) - 1), *_amounts(one)) for one in report.totals],
            )
        ],
        zone=question.period.zone,
    )


def usage_facts(question: UsageRequest, report: UsageReport) -> list[tuple[str, str]]:
    """Returns the header lines of the report, as pairs (label, text): its scope, and whether figures may still
    change."""
    tenant, period = question.tenant, question.period
    facts = [
        (PERIOD, period.in_words),
        ("Teams", tenant.name if tenant else "All teams that you may see"),
    ]
    if question.by == By.LABEL:
        facts.append(("Label", question.key))
    if report.lacks_before:
        until = to_the_minute(report.lacks_before.astimezone(period.zone))
        facts.append(
            (
                "Archived",
                f"Usage before {until} is archived. The report leaves out archived hours and days (UTC) that are only "
                "partly in the period.",
            )
        )
    left = question.unbooked()
    is_over = now_from_database() >= period.ends
    waiting = unsettled_of(question.scope.tenants, period.begins, period.ends)
    if left.jobs or not is_over or waiting:
        facts.append((STATE, PROVISIONAL))
    if told := left.in_words(period.zone):
        facts.append(("Usage not booked yet", told))
    if told := waiting.in_words(period.zone):
        facts.append(("Costs not final yet", told))
    return facts


NAMES = {
    By.JOB: [Column("job_id", "Number"), Column("job", "Job")],
    By.DAY: [Column("day", "Day", Kind.DATE)],
}
AMOUNTS = [
    Column("gpu_seconds", "GPU-hours", Kind.GPU_TIME, 4),
    Column("cost", "Amount", Kind.MONEY, 6),
    Column("currency", "Currency"),
]


def _names(row: UsageRow, by: By) -> Sequence[Cell]:
    if by == By.DAY:
        return [row.begins and row.begins.date()]
    return [str(row.job_id), row.job] if by == By.JOB else [name_of(row, by)]


def _amounts(row: UsageRow) -> Sequence[Cell]:
    return row.gpu_seconds, row.cost, row.currency


def read_question(user: User, query: Query, *, is_page: bool = False) -> UsageRequest:
    """Returns the reader's request for a usage report, as read from the URL query.

    Raises Http404 for a team that the user may not see, and WrongQuestion for an invalid grouping or period. For a page
    (`is_page`), uses a default instead of raising WrongQuestion.
    """
    tenant = chosen_tenant(user, query)
    by = _asked_groups(query, is_page=is_page)
    return UsageRequest(user, tenant, by, asked_period(query, is_page=is_page), query.get("label", ""))


def answer_to(question: UsageRequest, *, page: int | None = None) -> UsageReport:
    """Returns the usage report for a request. With `page`, it has only the rows of this page, and rows are sorted
    largest first.

    A report by day always has all days, in order.
    """
    by, largest, names = question.by, None, None
    if page is not None and by != By.DAY:
        largest = slice((page - 1) * ROWS_PER_PAGE, page * ROWS_PER_PAGE)
    if by == By.LABEL:
        names = JobLabel.objects.names(question.key, question.scope.tenants)
    return report_of(
        question.scope, by=[by], time_zone=question.period.zone.key, largest=largest, job_names=names
    )


def _asked_groups(query: Query, *, is_page: bool) -> By:
    asked = query.get("by", "")
    if asked in set(GROUPS):
        return By(asked)
    if asked and not is_page:
        raise WrongQuestion({"by": unknown_choice("grouping", asked, GROUPS)})
    return By.USER


def name_of(row: UsageRow, by: By) -> str:
    """Returns the text of a row's first column: the name of the group whose usage the row sums up."""
    if by == By.LABEL:
        return label_name(row.label)
    return f"{row.begins:%a, %-d %b %Y}" if by == By.DAY else str(getattr(row, by))
