"""The fairness report: the GPU time that teams were entitled to, and the GPU time that they received.

Operators also get fairness indices.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils.timezone import localtime
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import by_name
from accounting.core.wording import fixed
from accounting.models import Generation, ReportSubscription, Tenant, User
from portal.access import permitted, posted_from
from portal.forms.fields import Exact
from portal.forms.form import Form
from portal.forms.posting import perform
from portal.jobs.filters import jobs_in
from portal.marks import columns
from portal.reports.by_mail import by_mail
from portal.reports.fairness_tables import COLUMNS, FairnessReport, fairness_document
from portal.reports.formats import answer
from portal.reports.index_chart import draw_indices
from portal.reports.periods import LABELS, Query, ReportPeriod, asked_period
from portal.reports.scope import chosen_tenant
from portal.user_request import UserRequest
from scheduling.core.amounts import Amounts
from scheduling.models import Cluster
from scheduling.shares.fairness import (
    Row,
    Scope,
    compare,
    fairness_rows,
    finished,
    indices,
    indices_over_time,
    statement,
)

MOST_POINTS = 120


def read_fairness(user: User, query: Query, *, is_page: bool = False) -> FairnessReport:
    """Returns the fairness report for the team, cluster and period in the URL query.

    Raises Http404 for a team that the user may not see, and for an unknown cluster. Raises WrongQuestion for an invalid
    period. For a page (`is_page`), uses a default period instead of raising WrongQuestion.
    """
    name = query.get("cluster", "")
    return fairness_report(
        user,
        asked_period(query, is_page=is_page),
        tenant=chosen_tenant(user, query),
        cluster=get_object_or_404(Cluster, name=name) if name else None,
    )


@consistent_read()
def fairness_report(
    user: User, period: ReportPeriod, *, tenant: Tenant | None = None, cluster: Cluster | None = None
) -> FairnessReport:
    """Returns the fairness report that `user` may see for a period.

    It covers `tenant`, or all tenants that `user` may see, and `cluster`, or all clusters.
    """
    scope = Scope.of(user, period.begins, period.ends, tenant=tenant, cluster=cluster)
    rows = fairness_rows(scope)
    compared = compare(rows) if user.is_operator else []
    of = tenant or _only_own(user, rows)
    return FairnessReport(
        period=period,
        cluster=cluster,
        tenant=tenant,
        rows=rows,
        compared=compared,
        indices=indices(period.begins, period.ends, compared) if user.is_operator else None,
        over_time=indices_over_time(scope, edges(period)) if user.is_operator else [],
        finished=finished(scope),
        statement=statement(of, rows, scope) if of else None,
        weights=list(Generation.objects.all()),
    )


def _only_own(user: User, rows: list[Row]) -> Tenant | None:
    """Returns the tenant of `rows` if all rows are of one tenant and `user` is not an operator; otherwise None."""
    seen = {row.tenant.pk: row.tenant for row in rows}
    return next(iter(seen.values())) if len(seen) == 1 and not user.is_operator else None


def edges(period: ReportPeriod) -> list[datetime]:
    """Returns the bounds of the chart's intervals.

    In a period of up to four days, each interval is one hour long. In a longer period, each is one day long. If this
    would give more than `MOST_POINTS` intervals, each is as many whole days long as necessary.
    """
    days = (period.ends - period.begins) / timedelta(days=1)
    step = timedelta(hours=1) if days <= 4 else timedelta(days=max(1, -(-days // MOST_POINTS)))
    # Steps are taken in UTC, which has no daylight saving time: a day of 23 hours gets 23 intervals of an hour.
    begins, ends = (moment.astimezone(UTC) for moment in (period.begins, period.ends))
    moments = (begins + step * n for n in range(MOST_POINTS + 2))
    return [*takewhile(lambda moment: moment < ends, moments), ends]


class WeightForm(Form):
    """The form that sets the weight of a generation: the factor by which its GPU-hours are multiplied to compare
    teams."""

    weight = Exact("Weight")

    def __init__(self, generation: Generation, request: UserRequest | None = None) -> None:
        super().__init__(f"weight-{generation.pk}", request, initial={"weight": generation.weight})
        self.fields["weight"].label = generation.name


@require_safe
def fairness(request: UserRequest) -> HttpResponse:
    return _page(request)


def _index(value: float | None) -> str:
    return "unknown" if value is None else fixed(value, 3)


def _page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    report = read_fairness(request.user, request.GET, is_page=True)
    chart = draw_indices(
        {
            "jain": [one.jain for one in report.over_time],
            "max-min": [one.max_min for one in report.over_time],
        }
    )
    context = {
        "report": report,
        "marks": columns(
            (
                f"{localtime(one.begins):%-d %b %H:%M} to {localtime(one.ends):%-d %b %H:%M}: Jain's index "
                f"{_index(one.jain)}, worst-served ÷ best-served team {_index(one.max_min)}",
                jobs_in(one.begins, one.ends, team=report.tenant.slug if report.tenant else ""),
            )
            for one in report.over_time
        ),
        "tenants": list(Tenant.objects.visible_to(request.user).order_by(*by_name("name"))),
        "clusters": list(Cluster.objects.order_by(*by_name("name"))),
        "tenant": report.tenant,
        "cluster": report.cluster,
        "period": report.period,
        "periods": LABELS,
        "columns": COLUMNS,
        "rows": [(row, _cells(row.amounts)) for row in report.rows],
        "compared": [(one, _cells(one.amounts)) for one in report.compared],
        "lines": [(line, _cells(line.own)) for line in report.statement.lines] if report.statement else [],
        "total": _cells(report.statement.total) if report.statement else [],
        "chart": chart,
        "weights": [(one, WeightForm(one).or_posted(posted)) for one in report.weights],
    }
    context |= by_mail(request.user, ReportSubscription.Report.FAIRNESS, report.tenant)
    return render(request, "reports/fairness.html", context, status=422 if posted else 200)


def _cells(amounts: Amounts) -> list[tuple[str, float]]:
    """Returns a pair (column heading, GPU-seconds) for each of the amounts in COLUMNS."""
    return [(heading, getattr(amounts, name)) for name, heading in COLUMNS.items()]


@permitted("weight.set")
@posted_from("usage_fairness")
def set_weight(request: UserRequest, pk: int) -> HttpResponse:
    generation = get_object_or_404(Generation, pk=pk)
    return perform(
        request,
        WeightForm(generation, request),
        lambda values: actions.set_weight(actor=request.user, generation=generation, **values),
        done=f"The weight of the GPU type {generation.name} has been changed.",
        to=("usage_fairness",),
        page=partial(_page),
    )


@require_safe
def fairness_file(request: UserRequest, form: str) -> HttpResponseBase:
    return fairness_in_format(request.user, request.GET, form)


def fairness_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns the fairness report as a file with unrounded figures. `form` is the file format."""
    report = read_fairness(user, query)
    name = f"fairlot-fairness-{report.period.in_a_name}"
    return answer(fairness_document(report), form, name)
