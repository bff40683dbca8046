"""Endpoints that read, start and repeat analyses of sharing anomalies, which are jobs that sharing delayed."""

from __future__ import annotations

from typing import Any

from django.db.models import Sum
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from ninja.responses import Status

from accounting.access.visibility import visible_ids
from accounting.core.name_order import by_name
from fairshare.counterfactual.anomalies import FALSE_RATES
from portal.api.anomalies import schemas
from portal.api.auth import require_permission
from portal.reports.scope import chosen_cluster, chosen_tenant
from portal.share.anomalies import chosen_analysis
from portal.share.anomaly_tables import anomalies_in_format
from portal.user_request import ApiRequest
from scheduling.anomalies.actions import analyse_last_days, repeat_analysis
from scheduling.anomalies.seen import SeenAnomaly, read_analyses, read_anomalies, read_parts, seen
from scheduling.models import Cluster, SharingAnalysis

router = Router(tags=["Reports"])

NONE_YET: dict[str, Any] = {
    "analysis": None, "cluster": None, "begins": None, "ends": None, "teams": 0, "teams_done": 0,
    "finished_at": None, "compared": 0, "too_large": 0, "without_result": [], "items": [], "total": 0,
    "false_rates": [{"load": load, "part": part} for load, part in FALSE_RATES],
}  # fmt: skip


@router.get("/share/anomalies", response=schemas.SharingAnomalies, url_name="share_anomalies")
def share_anomalies(
    request: ApiRequest, asked: Query[schemas.AnomalyQuestion]
) -> dict[str, Any] | HttpResponseBase:
    """Returns one page of the sharing anomalies that an analysis found: jobs of the caller's teams that sharing
    delayed.

    The job with the longest delay comes first. Without `analysis`, the latest finished analysis of the cluster is used.
    If no analysis is finished, the latest unfinished one is used. In formats other than JSON, one file contains all
    anomalies and not only one page.
    """
    user = request.auth
    if asked.format != "json":
        return anomalies_in_format(user, request.GET, asked.format)
    tenant = chosen_tenant(user, request.GET)
    cluster = chosen_cluster(request.GET, list(Cluster.objects.order_by(*by_name("name"))))
    analysis = chosen_analysis(str(asked.analysis or ""), read_analyses(user, cluster))
    if analysis is None or cluster is None:
        return NONE_YET
    found = read_anomalies(user, analysis, tenant=tenant)
    if asked.cause:
        found = found.filter(cause=asked.cause)
    some = found[asked.offset : asked.offset + asked.limit]
    parts = read_parts(user, analysis, tenant)
    sums = parts.aggregate(Sum("judged"), Sum("too_large"))
    same = ("begins", "ends", "teams", "teams_done", "finished_at")
    return (
        NONE_YET
        | {name: getattr(analysis, name) for name in same}
        | {
            "analysis": analysis.pk,
            "cluster": cluster.name,
            "compared": sums["judged__sum"] or 0,
            "too_large": sums["too_large__sum"] or 0,
            "without_result": [{"team": part.tenant.slug, "why": part.trouble} for part in parts.troubled()],
            "items": [_show(row) for row in seen(some, visible_ids(user))],
            "total": found.count(),
        }
    )


@router.post("/share/anomalies", response={202: schemas.Analysis}, url_name="share_anomalies")
def analyse(request: ApiRequest, new: schemas.NewAnalysis) -> Status[Any]:
    """Starts an analysis of the last `days` days of a cluster, up to the last full hour. It runs in the background. For
    operators.

    If an analysis of exactly this period exists, no new one starts. The existing one then continues with the teams that
    have no result yet.
    """
    require_permission(request, "anomalies.analyse")
    cluster = get_object_or_404(Cluster.objects.attached(), name=new.cluster)
    return Status(202, _asked_for(analyse_last_days(actor=request.auth, cluster=cluster, days=new.days)))


@router.post(
    "/share/anomalies/{int:analysis_id}/again",
    response={202: schemas.Analysis},
    url_name="share_analyse_again",
)
def again(request: ApiRequest, analysis_id: int) -> Status[Any]:
    """Repeats an analysis for those teams for which it has no result. For operators."""
    require_permission(request, "anomalies.analyse")
    analysis = get_object_or_404(SharingAnalysis.objects.select_related("cluster"), pk=analysis_id)
    return Status(202, _asked_for(repeat_analysis(actor=request.auth, analysis=analysis)))


def _asked_for(analysis: SharingAnalysis) -> dict[str, Any]:
    same = ("begins", "ends", "finished_at")
    named = {"analysis": analysis.pk, "cluster": analysis.cluster.name}
    return named | {name: getattr(analysis, name) for name in same}


def _show(row: SeenAnomaly) -> dict[str, Any]:
    one = row.anomaly
    same = ("id", "job_id", "cause", "causes", "late_seconds", "at_end")
    times = ("started_at", "ended_at", "private_started_at", "private_ended_at")
    return {name: getattr(one, name) for name in (*same, *times)} | {
        "job": one.job.name,
        "team": one.part.tenant.slug,
        "holders": row.holders,
    }
