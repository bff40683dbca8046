"""Sharing anomalies: which jobs would have fared better on machines of their team's own, and who was in their way."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.core.paginator import Paginator
from django.db.models import Count, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.access.visibility import ANOTHER
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.name_order import by_name, in_order
from accounting.core.numbers import read_key
from accounting.core.wording import percent
from accounting.ledger.rollups import start_of_hour
from accounting.models import ReportSubscription, Tenant, User
from fairshare.counterfactual.anomalies import FALSE_RATES
from portal.administration.access import permitted, posted_from
from portal.administration.forms import Refusal, chosen, perform, show, whole
from portal.reports.by_mail import by_mail
from portal.share.trades import visible_ids
from portal.share.views import chosen_cluster, chosen_tenant
from scheduling.anomalies.actions import LONGEST, is_tried_again, repeat_analysis, request_analysis
from scheduling.models import AnomalyHolder, Cluster, SharingAnalysis, SharingAnomaly, SharingPart

ANOMALIES_PER_PAGE = 25
EXPECTED = "Where nothing went wrong, expect about {} of the jobs compared here all the same.".format(
    ", ".join(f"{percent(part)} at a load of {percent(load)}" for load, part in FALSE_RATES)
)
ANALYSES_TO_CHOOSE = 30
CAUSES = dict(SharingAnomaly.Cause.choices)


@dataclass(frozen=True)
class SeenHolder:
    """Who held GPUs; without a job and with "another team" where the reader may not see whose it is."""

    job_id: int | None
    job: str
    team: str
    gpu_seconds: float


@dataclass(frozen=True)
class SeenAnomaly:
    """An anomaly with its causes in words, the most first, and those in its way as the reader may see them."""

    anomaly: SharingAnomaly
    causes: list[tuple[str, float]]
    holders: list[SeenHolder]


@require_safe
def anomalies(request: HttpRequest) -> HttpResponse:
    return anomalies_page(request)


def anomalies_page(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    clusters = list(Cluster.objects.order_by(*by_name("name")))
    cluster = chosen_cluster(request.GET.get("cluster", ""), clusters)
    tenants = list(Tenant.objects.visible_to(request.user))
    tenant = chosen_tenant(request) if request.GET.get("team") else None
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
        "longest": LONGEST.days,
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
    return show(request, "share/anomalies.html", context, refusal=refusal)


@permitted("anomalies.analyse")
@posted_from("share_anomalies")
def analyse(request: HttpRequest) -> HttpResponse:
    return perform(
        request,
        "analyse",
        lambda post: analyse_days(
            request.user, chosen(post, "cluster", Cluster.objects.attached()), whole(post, "days")
        ),
        done="The analysis is asked for; its teams appear here as they are done.",
        to=("share_anomalies",),
        page=anomalies_page,
    )


def analyse_days(user: User, cluster: Cluster, days: int) -> SharingAnalysis:
    """Asks for an analysis of the last so many days, up to the last full hour. Refused naming what is wrong."""
    if days < 1:
        raise Refused("This must be at least a day.", "days")
    ends = start_of_hour(now_from_database())
    begins = ends - timedelta(days=min(days, LONGEST.days + 1))
    return request_analysis(actor=user, cluster=cluster, begins=begins, ends=ends)


@permitted("anomalies.analyse")
@posted_from("share_anomalies")
def again(request: HttpRequest) -> HttpResponse:
    """Asks for the teams of an analysis again of which nothing could be said."""
    return perform(
        request,
        "again",
        lambda post: repeat_analysis(
            actor=request.user, analysis=chosen(post, "analysis", SharingAnalysis.objects.all())
        ),
        done="These teams are analysed again; they appear here as they are done.",
        to=("share_anomalies",),
        page=anomalies_page,
    )


def read_analyses(user: User, cluster: Cluster | None) -> QuerySet[SharingAnalysis]:
    """Of the cluster, the latest period first."""
    return SharingAnalysis.objects.visible_to(user).filter(cluster=cluster).with_progress()


def chosen_analysis(key: str, analyses: QuerySet[SharingAnalysis]) -> SharingAnalysis | None:
    """The one of this key, 404 when there is none; when none is named the latest that is finished, if there is any."""
    if key:
        return get_object_or_404(analyses, pk=read_key(key))
    return analyses.exclude(finished_at=None).first() or analyses.first()


def read_parts(user: User, analysis: SharingAnalysis, tenant: Tenant | None = None) -> QuerySet[SharingPart]:
    parts = SharingPart.objects.visible_to(user).filter(analysis=analysis).select_related("tenant")
    if tenant:
        parts = parts.filter(tenant__in=Tenant.objects.within(tenant))
    return parts.order_by(*by_name("tenant__name"))


def read_anomalies(
    user: User, analysis: SharingAnalysis, *, tenant: Tenant | None = None
) -> QuerySet[SharingAnomaly]:
    """The latest jobs first."""
    found = SharingAnomaly.objects.visible_to(user).filter(part__analysis=analysis)
    if tenant:
        found = found.filter(part__tenant__in=Tenant.objects.within(tenant))
    return found.select_related("job", "job__owner", "part__tenant").defer("job__spec")


def seen(anomalies: Iterable[SharingAnomaly], mine: Collection[int]) -> list[SeenAnomaly]:
    """`anomalies` as somebody sees them who may see the tenants `mine`."""
    listed = list(anomalies)
    held: dict[int, list[AnomalyHolder]] = {one.pk: [] for one in listed}
    holders = AnomalyHolder.objects.filter(anomaly__in=listed).select_related("job__tenant")
    for holder in holders.defer("job__spec"):
        held[holder.anomaly_id].append(holder)
    return [
        SeenAnomaly(
            one,
            sorted(((CAUSES[c], seconds) for c, seconds in one.causes.items()), key=lambda c: -c[1]),
            _holders(held[one.pk], mine),
        )
        for one in listed
    ]


def _holders(holders: Iterable[AnomalyHolder], mine: Collection[int]) -> list[SeenHolder]:
    """The reader's own one by one, all others together and without names."""
    shown: list[SeenHolder] = []
    hidden = 0.0
    for one in holders:
        if one.job.tenant_id in mine:
            shown.append(SeenHolder(one.job_id, one.job.name, one.job.tenant.name, one.gpu_seconds))
        else:
            hidden += one.gpu_seconds
    if hidden:
        shown.append(SeenHolder(None, "", ANOTHER, hidden))
    return sorted(shown, key=lambda one: -one.gpu_seconds)
