"""The page about sharing anomalies: jobs that sharing delayed, and the jobs that held GPUs while the delayed jobs
needed them.

A job counts as delayed if it started or ended later than it would have on its team's private cluster.
"""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db.models import Count, QuerySet, Sum
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.access.visibility import visible_ids
from accounting.core.name_order import by_name, in_order
from accounting.core.numbers import read_key
from accounting.core.wording import percent
from accounting.models import ReportSubscription, Tenant
from fairshare.counterfactual.anomalies import FALSE_RATES
from portal.access import permitted, posted_from
from portal.forms.fields import Row, Whole
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.reports.by_mail import by_mail
from portal.reports.scope import chosen_cluster, chosen_tenant
from portal.user_request import UserRequest
from scheduling.anomalies.actions import LONGEST, analyse_last_days, is_tried_again, repeat_analysis
from scheduling.anomalies.seen import CAUSES, read_analyses, read_anomalies, read_parts, seen
from scheduling.models import Cluster, SharingAnalysis

ANOMALIES_PER_PAGE = 25
EXPECTED = (
    "Even if the scheduler makes no mistake, a few of the compared jobs are reported as anomalies: about {}."
).format(
    ", ".join(
        f"{percent(part)} of the jobs at a cluster load of {percent(load)}" for load, part in FALSE_RATES
    )
)
ANALYSES_TO_CHOOSE = 30


class AnalyseForm(Form):
    """The form that starts an analysis: the cluster, and the number of days to analyse."""

    cluster = Row("Cluster", Cluster.objects.attached().order_by(*by_name("name")))
    days = Whole(f"Number of past days to analyse, at most {LONGEST.days}", initial=7)


class AgainForm(Form):
    """The form that chooses which analysis to repeat."""

    analysis = Row("Analysis", SharingAnalysis.objects.all())


@require_safe
def anomalies(request: UserRequest) -> HttpResponse:
    return anomalies_page(request)


def anomalies_page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    clusters = list(Cluster.objects.order_by(*by_name("name")))
    cluster = chosen_cluster(request.GET, clusters)
    tenants = list(Tenant.objects.visible_to(request.user))
    tenant = chosen_tenant(request.user, request.GET)
    analyses = read_analyses(request.user, cluster)
    analysis = chosen_analysis(request.GET.get("analysis", ""), analyses)
    cause = request.GET.get("cause", "")
    context = {
        "clusters": clusters,
        "cluster": cluster,
        "tenants": in_order(tenants),
        "tenant": tenant,
        "analyses": list(analyses[:ANALYSES_TO_CHOOSE]),
        "analysis": analysis,
        "running": list(analyses.unfinished()),
        "cause": cause if cause in CAUSES else "",
        "causes": CAUSES,
        "analyse": AnalyseForm("analyse", initial={"cluster": cluster}).or_posted(posted),
        "expected": EXPECTED,
        **by_mail(request.user, ReportSubscription.Report.ANOMALIES, tenant),
    }
    if analysis is not None:
        parts = read_parts(request.user, analysis, tenant)
        found = read_anomalies(request.user, analysis, tenant=tenant)
        shown = found.filter(cause=cause) if cause in CAUSES else found
        page = Paginator(shown, ANOMALIES_PER_PAGE).get_page(request.GET.get("page"))
        counts = dict(found.order_by().values_list("cause").annotate(Count("pk")))
        context |= {
            "page": page,
            "rows": seen(page, visible_ids(request.user)),
            "counts": [(CAUSES[one], count) for one, count in sorted(counts.items(), key=lambda c: -c[1])],
            "total": sum(counts.values()),
            "late": found.aggregate(late=Sum("late_seconds"))["late"] or 0.0,
            "compared": parts.aggregate(*map(Sum, ("judged", "unfinished", "carried", "too_large"))),
            "troubled": [part for part in parts if part.trouble],
            "incomparable": [part for part in parts if part.trouble and not part.has_failed],
            "tries_again": is_tried_again(analysis),
            "private": [part for part in parts if part.done_at and not part.has_failed][:ANOMALIES_PER_PAGE],
        }
    return show(request, "share/anomalies.html", context, posted=posted)


@permitted("anomalies.analyse")
@posted_from("share_anomalies")
def analyse(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        AnalyseForm("analyse", request),
        lambda values: analyse_last_days(actor=request.user, **values),
        done="The analysis has been requested. Its results appear here team by team.",
        to=("share_anomalies",),
        page=anomalies_page,
    )


@permitted("anomalies.analyse")
@posted_from("share_anomalies")
def again(request: UserRequest) -> HttpResponse:
    """Repeats an analysis, but only for the teams that have no result in it."""
    return perform(
        request,
        AgainForm("again", request),
        lambda values: repeat_analysis(actor=request.user, **values),
        done="The teams without a result will be analysed again. Their results appear here team by team.",
        to=("share_anomalies",),
        page=anomalies_page,
    )


def chosen_analysis(key: str, analyses: QuerySet[SharingAnalysis]) -> SharingAnalysis | None:
    """Returns the analysis with this key. Raises Http404 for an unknown key.

    Without a key, returns the latest finished analysis or, if none is finished, the latest one. Returns None if there
    is no analysis at all.
    """
    if key:
        return get_object_or_404(analyses, pk=read_key(key))
    return analyses.exclude(finished_at=None).first() or analyses.first()
