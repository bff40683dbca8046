"""The page of the usage report. Also returns the report as a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import in_order
from accounting.models import Tenant
from accounting.models.tenants import visible_tenants
from accounting.reports.usage import By, UsageRow
from portal.jobs.filters import jobs_in
from portal.reports.by_mail import by_mail
from portal.reports.periods import LABELS
from portal.reports.usage import (
    GROUPS,
    ROWS_PER_PAGE,
    UsageRequest,
    answer_to,
    name_of,
    read_question,
    usage_in_format,
)
from portal.user_request import UserRequest
from portal.wording import money_digits
from scheduling.models import Job
from scheduling.reports.exports import may_export
from scheduling.reports.exports.reading import exportable_tenants


@require_safe
@consistent_read()  # usage that is booked during the request counts either as booked or as unbooked
def usage(request: UserRequest) -> HttpResponse:
    tenants = visible_tenants(request.user)
    number = page_number(request.GET.get("page", ""))
    question = read_question(request.user, request.GET, is_page=True)
    tenant, by, period = question.tenant, question.by, question.period
    report = answer_to(question, page=number)
    page: Page[Any] = Paginator(range(report.count), ROWS_PER_PAGE).get_page(number)
    if by != By.DAY and page.number != number:  # the requested page does not exist: show the nearest one
        report = answer_to(question, page=page.number)
        page = Paginator(range(report.count), ROWS_PER_PAGE).get_page(page.number)
    page.object_list = [report.rows[at] for at in page] if by == By.DAY else report.rows
    context = {
        "tenants": in_order(tenants),
        "tenant": tenant,
        "groups": {
            key: label
            for key, label in GROUPS.items()
            if {By.TENANT: len(tenants) > 1, By.LABEL: question.keys or by == By.LABEL}.get(key, True)
        },
        "by": by,
        "keys": question.keys,
        "key": question.key,
        "heading": GROUPS[by],
        "period": period,
        "now": now_from_database(),
        "periods": LABELS,
        "page": page,
        "digits": money_digits(row.cost for row in page),
        "rows": _rows(request, question, page, tenants),
        "most": report.most,
        "totals": report.totals,
        "lacks_before": report.lacks_before,
        "unbooked": question.unbooked(),
        "may_export": may_export(request.user),
        "export_team": _export_team(request, tenant),
        **by_mail(request.user, "usage", tenant, by=by, label=question.key if by == By.LABEL else ""),
    }
    return render(request, "reports/usage.html", context)


@require_safe
def usage_file(request: UserRequest, form: str) -> HttpResponseBase:
    return usage_in_format(request.user, request.GET, form)


def page_number(text: str) -> int:
    """Converts the text to a page number; returns 1 if it is not a valid number."""
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 8 else 1


def _export_team(request: UserRequest, tenant: Tenant | None) -> str | None:
    """Returns the slug of the chosen team if the reader may export the team's jobs; otherwise None."""
    if tenant is None or not exportable_tenants(request.user).filter(pk=tenant.pk).exists():
        return None
    return tenant.slug


def _rows(
    request: UserRequest, question: UsageRequest, rows: Sequence[UsageRow], tenants: Sequence[Tenant]
) -> list[tuple[str, UsageRow, str]]:
    """Returns the name of each row, the row, and the address of what is behind it; "" if there is nothing to show.

    A team leads to its users, a day to its jobs, a job to its page, and a user or GPU type to the jobs that held GPUs
    in the period.
    """
    by, period, tenant = question.by, question.period, question.tenant
    jobs = _visible_jobs(request, rows, by)
    slugs = {one.pk: one.slug for one in tenants}
    team = tenant.slug if tenant else ""

    def further(**changes: str) -> str:
        query = request.GET.copy()
        query.pop("page", None)
        for name, value in changes.items():
            query[name] = value
        return f"{reverse('usage')}?{query.urlencode()}"

    def address(row: UsageRow) -> str:
        match by:
            case By.JOB if row.job_id in jobs:
                return reverse("job", args=[row.job_id])
            case By.USER:
                return jobs_in(period.begins, period.ends, team=team, owner=row.user or "")
            case By.GENERATION:
                return jobs_in(period.begins, period.ends, team=team, generation=row.generation or "")
            case By.TENANT if row.tenant_id in slugs:
                return further(team=slugs[row.tenant_id], by=By.USER)
            case By.DAY if row.begins:
                day = row.begins.date().isoformat()
                return further(period="dates", by=By.JOB, **{"from": day, "to": day})
        return ""

    return [(name_of(row, by), row, address(row)) for row in rows]


def _visible_jobs(request: UserRequest, rows: Iterable[UsageRow], by: By) -> set[int]:
    """Returns the ids of those jobs in `rows` that the reader may see. The result is empty unless the report is grouped
    by job (`by`)."""
    if by != By.JOB:
        return set()
    # A reader still sees the usage of jobs after losing the permission to see the jobs.
    ids = [row.job_id for row in rows if row.job_id is not None]
    return set(Job.objects.visible_to(request.user).filter(pk__in=ids).values_list("pk", flat=True))
