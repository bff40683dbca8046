"""Our share and the trade book."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from django.core.paginator import Paginator
from django.db.models import Max, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.timezone import localtime
from django.views.decorators.http import require_safe

from accounting.clock import now_from_database
from accounting.models import Generation, ReportSubscription, Tenant, User
from accounting.models.tenants import ids_with_role
from accounting.trade_totals import booked_trades
from portal.reports.by_mail import by_mail
from portal.share.chart import draw
from portal.share.limits import limits_in_force, managed
from portal.share.periods import DEFAULT_PERIOD, PERIODS, Period, asked_stretch, read_period
from portal.share.queries import POINTS, point_times, read_share
from portal.share.runs import read_runs
from portal.share.trades import read_trades, seen, totals, visible_ids
from scheduling.amounts import Amounts
from scheduling.models import Cluster, ShareInterval, Trade

TRADES_PER_PAGE = 25
# Shares are written down when a round ends; a younger last round means that nothing is missing yet.
SETTLED_WITHIN = timedelta(minutes=15)


@require_safe
def share(request: HttpRequest) -> HttpResponse:
    """What one team was entitled to, received, lent, borrowed, bought and sold on one cluster."""
    clusters = list(Cluster.objects.order_by("name"))
    cluster = chosen_cluster(request.GET.get("cluster", ""), clusters)
    tenants = list(Tenant.objects.visible_to(request.user).active())
    period = read_period(request.GET.get("period"), usual=_usual_period(request.user))
    context = {
        "clusters": clusters,
        "cluster": cluster,
        "tenants": tenants,
        "own": own_tenants(request.user),
        "periods": PERIODS,
        "period": period,
    }
    if tenants and cluster:
        tenant = chosen_tenant(request, default=_usual_tenant(request.user, tenants))
        period = _until_last_round(request.user, tenant, period, cluster)
        series = read_share(request.user, tenant, period, cluster)
        seconds = period.seconds / POINTS
        times = [localtime(time) for time in point_times(period)]
        context |= {
            "tenant": tenant,
            "limits": limits_in_force(tenant),
            "may_limit": managed(request.user).filter(pk=tenant.pk).exists(),
            "period": period,
            "charts": [draw(one, seconds_per_point=seconds) for one in series],
            "total": sum((one.total for one in series), Amounts()),
            "owed": sum(one.owed for one in series),
            "times": times,
            "middle": times[POINTS // 2],
            "time_format": "H:i" if period.seconds <= 86_400 else "j M H:i",
            "rows": [(one.generation, list(zip(times, one.points, strict=True))) for one in series],
        }
    return render(request, "share/share.html", context)


@require_safe
def trades(request: HttpRequest) -> HttpResponse:
    """Who gave which GPU time for which, and what it was worth to one's own team."""
    tenants = list(Tenant.objects.visible_to(request.user))
    tenant = chosen_tenant(request) if request.GET.get("team") else None
    period = asked_stretch(request, usual=_usual_period(request.user), is_page=True)
    generation = request.GET.get("generation", "")
    found = read_trades(request.user, period, generation=generation, tenant=tenant)
    mine = visible_ids(request.user)
    single = _run_of(request, found)
    shown = found if single is None else single
    page = Paginator(read_runs(found, mine) if single is None else single, TRADES_PER_PAGE).get_page(
        request.GET.get("page")
    )
    sides = set(Tenant.objects.within(tenant).values_list("pk", flat=True)) & mine if tenant else mine
    of = None if _sees_all(request.user, tenant) else sides
    booked = booked_trades(period.begins, period.ends, of)
    context = {
        "tenants": tenants,
        "tenant": tenant,
        "period": period,
        "periods": PERIODS,
        "generation": generation,
        "generations": Generation.objects.filter(nodes__isnull=False).distinct(),
        "page": page,
        "single": single is not None,
        "runs": page if single is None else [],
        "trades": [] if single is None else seen(page, mine),
        "totals": totals(shown, sides),
        "booked": booked,
        "sees_all": _sees_all(request.user, tenant),
        "balanced": all(one.sum == 0 for one in booked),
        # What all gave is what all got: the sum says nothing, how much changed hands does.
        **by_mail(request.user, ReportSubscription.Report.TRADES, tenant),
        "within": not shown.exclude(seller__in=sides, buyer__in=sides).exists(),
    }
    return render(request, "share/trades.html", context)


def _sees_all(user: User, tenant: Tenant | None) -> bool:
    """Whether both sides of all trades are asked for, which sum to zero."""
    return user.is_operator and tenant is None


def _run_of(request: HttpRequest, trades: QuerySet[Trade]) -> QuerySet[Trade] | None:
    """The single ones of the run to which the trade `?run=` belongs; 404 when it is none of the user's."""
    asked = request.GET.get("run", "")
    if not asked:
        return None
    pk = int(asked) if asked.isdecimal() and len(asked) < 19 else 0
    one = get_object_or_404(Trade.objects.visible_to(request.user), pk=pk)
    same = trades.filter(
        round__cluster=one.round.cluster_id,
        seller=one.seller_id, buyer=one.buyer_id, slow=one.slow_id, fast=one.fast_id,
    )  # fmt: skip
    for run in read_runs(same, ()):
        if run.first <= one.pk <= run.last:
            return same.filter(begins__gte=run.begins, begins__lte=run.last_begins)
    return same.none()


def chosen_tenant(request: HttpRequest, default: Tenant | None = None) -> Tenant:
    """The tenant of `?team=`, 404 when the user may not see it; `default` when none is named."""
    slug = request.GET.get("team", "")
    if not slug and default is not None:
        return default
    return get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug)


def chosen_cluster(name: str, clusters: list[Cluster]) -> Cluster | None:
    """The cluster of this name, 404 when there is none; the first one when none is named, if there is any."""
    if not name:
        return clusters[0] if clusters else None
    found = next((cluster for cluster in clusters if cluster.name == name), None)
    if found is None:
        raise Http404
    return found


def _usual_period(user: User) -> str:
    """A day, or the last hour while nothing is older than that."""
    hour_ago = now_from_database() - timedelta(hours=1)
    older = ShareInterval.objects.visible_to(user).filter(begins__lt=hour_ago)
    return DEFAULT_PERIOD if older.exists() or not ShareInterval.objects.visible_to(user).exists() else "1h"


def own_tenants(user: User) -> set[int]:
    """Those in which the user has a role, and all below them."""
    return set(ids_with_role(user))


def _usual_tenant(user: User, tenants: list[Tenant]) -> Tenant:
    """The first one of the user's own, else the first."""
    own = set(user.memberships.values_list("tenant", flat=True))
    return next((tenant for tenant in tenants if tenant.pk in own), tenants[0])


def _until_last_round(user: User, tenant: Tenant, period: Period, cluster: Cluster) -> Period:
    """The same length of time, ending with the last round whose shares are known."""
    intervals = ShareInterval.objects.visible_to(user).filter(
        cluster=cluster, tenant__in=Tenant.objects.within(tenant)
    )
    last = intervals.filter(ends__gt=period.ends - SETTLED_WITHIN).aggregate(last=Max("ends"))["last"]
    if last is None or last >= period.ends:
        return period
    return replace(period, begins=last - (period.ends - period.begins), ends=last)
