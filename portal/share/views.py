"""The share page, and the page of the trade book, which lists trades of GPU time between teams."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.timezone import localtime
from django.views.decorators.http import require_safe

from accounting.access.visibility import visible_ids
from accounting.core.name_order import by_name, in_order
from accounting.core.numbers import read_key
from accounting.core.prepared import Prepared
from accounting.limits.temporary_tickets import ticket_ends
from accounting.models import Generation, ReportSubscription, Tenant, User
from accounting.models.tenants import ids_with_role, visible_tenants
from accounting.reports.trade_totals import booked_trades
from portal.reports.by_mail import by_mail
from portal.reports.periods import TODAY
from portal.reports.scope import chosen_cluster, chosen_tenant
from portal.share.chart import draw
from portal.share.limits import limits_in_force, may_limit
from portal.share.periods import (
    PERIODS,
    Period,
    asked_stretch,
    midnight_before,
    named_period,
    usual_period,
)
from portal.share.verdict import Verdict, shift_of
from portal.user_request import UserRequest
from scheduling.core.amounts import Amounts
from scheduling.models import Cluster, Trade
from scheduling.reports.trade_runs import read_runs
from scheduling.reports.trades import read_trades, seen, totals
from scheduling.shares.changed_speeds import changed_speeds
from scheduling.shares.series import POINTS, is_young, last_round, point_times, share_of

TRADES_PER_PAGE = 25
ROUND_LENGTH = ("quantum_seconds", "switch_seconds", "overhead_limit")  # fields of a cluster


@require_safe
def share(request: UserRequest) -> HttpResponse:
    """Shows a team's share of one cluster: its entitlement, and the GPU time that it received, lent, borrowed, bought
    and sold."""
    clusters = _clusters()
    cluster = chosen_cluster(request.GET, clusters)
    visible = visible_tenants(request.user)
    tenants = [tenant for tenant in visible if tenant.archived_at is None]
    own = own_tenants(request.user)
    context: dict[str, Any] = {
        "clusters": clusters,
        "cluster": cluster,
        "tenants": in_order(tenants),
        "own": own,
    }
    if tenants and cluster:
        usual = next((tenant for tenant in tenants if tenant.pk in own), tenants[0])
        context |= _shared(request, _named(request.GET.get("team", ""), visible, usual), visible, cluster)
    return render(request, "share/share.html", context)


def _shared(request: UserRequest, tenant: Tenant, visible: list[Tenant], cluster: Cluster) -> dict[str, Any]:
    """Returns the page's context for the share of `tenant` and of those teams below it that are in `visible`."""
    teams = [one.pk for one in visible if one.path.startswith(tenant.path)]
    now, last = last_round(teams, cluster)
    key = request.GET.get("period", "")
    if key not in PERIODS:
        key = _usual_period(visible, now)
    if last is None or (key == TODAY and last <= midnight_before(now)):  # nothing has ended today
        last = now
    period = named_period(key, ends=min(last, now))
    series = share_of(teams, cluster, period.begins, period.ends)
    total = sum((one.total for one in series), Amounts())
    times = [localtime(time) for time in point_times(period.begins, period.ends)]
    return {
        "tenant": tenant,
        "limits": limits_in_force(tenant),
        "ticket_ends": ticket_ends([tenant]).get(tenant.pk, []),
        "may_limit": may_limit(request.user, tenant),
        "periods": PERIODS,
        "period": period,
        "charts": [
            (chart, chart.marks(times, localtime(period.ends), team=tenant.slug))
            for chart in (draw(one, seconds_per_point=period.seconds / POINTS) for one in series)
        ],
        "total": total,
        "verdict": Verdict(total.owed, sum(one.owed for one in series), cluster.effective_quantum),
        "shift": shift_of(
            {one.generation.name: one.total.owed for one in series},
            due=total.due,
            grain=cluster.effective_quantum,
        ),
        "times": times,
        "middle": times[POINTS // 2],
        "time_format": "H:i" if period.seconds <= 86_400 else "j M H:i",
        "rows": [(one.generation, one.points) for one in series],
    }


@require_safe
def trades(request: UserRequest) -> HttpResponse:
    """Shows the trades that the user may see: the GPU time that each team gave and got, and how much the user's teams
    gained."""
    tenants = visible_tenants(request.user)
    tenant = chosen_tenant(request.user, request.GET)
    period = asked_stretch(request.GET, usual=_usual_period(tenants, timezone.now()), is_page=True)
    generation = request.GET.get("generation", "")
    found = read_trades(request.user, period.begins, period.ends, generation=generation, tenant=tenant)
    mine = visible_ids(request.user)
    single = _run_of(request, found)
    shown = found if single is None else single
    page: Page[Any] = Paginator(
        read_runs(found, mine) if single is None else single, TRADES_PER_PAGE
    ).get_page(request.GET.get("page"))
    sides = set(Tenant.objects.within(tenant).values_list("pk", flat=True)) & mine if tenant else mine
    of = None if _sees_all(request.user, tenant) else sides
    booked = booked_trades(period.begins, period.ends, of)
    context = {
        "tenants": in_order(tenants),
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
        **by_mail(request.user, ReportSubscription.Report.TRADES, tenant),
        "within": not shown.exclude(seller__in=sides, buyer__in=sides).exists(),
        "changed": _changed(sides, period),
    }
    return render(request, "share/trades.html", context)


def _changed(tenants: Collection[int], period: Period) -> list[tuple[Tenant, float]]:
    """Returns pairs (tenant, factor) for tenants whose measured speed-ups changed after they began to trade in the
    period.

    A factor of 1.2 means that a speed-up grew or shrank by a factor of 1.2. Such a change may mean that the tenant's
    jobs report wrong speeds to gain from trades.
    """
    factors = changed_speeds(tenants, period.begins, period.ends)
    return [(tenant, factors[tenant.pk]) for tenant in in_order(Tenant.objects.filter(pk__in=factors))]


def _sees_all(user: User, tenant: Tenant | None) -> bool:
    """Returns whether the user is an operator who chose no team.

    Such an operator sees both teams of every trade, and the page shows that all trades add up to zero.
    """
    return user.is_operator and tenant is None


def _run_of(request: UserRequest, trades: QuerySet[Trade]) -> QuerySet[Trade] | None:
    """Returns all trades of the run that contains the trade `?run=`; None if the URL has no `?run=`.

    A run is a series of consecutive trades between the same two tenants, in the same generations, on one cluster.
    Raises Http404 if the user may not see the trade.
    """
    asked = request.GET.get("run", "")
    if not asked:
        return None
    pk = read_key(asked)
    one = get_object_or_404(Trade.objects.visible_to(request.user), pk=pk)
    same = trades.filter(
        round__cluster=one.round.cluster_id,
        seller=one.seller_id, buyer=one.buyer_id, slow=one.slow_id, fast=one.fast_id,
    )  # fmt: skip
    for run in read_runs(same, ()):
        if run.first <= one.pk <= run.last:
            return same.filter(begins__gte=run.begins, begins__lte=run.last_begins)
    return same.none()


def _named(slug: str, tenants: list[Tenant], usual: Tenant) -> Tenant:
    """Returns the tenant in `tenants` with this slug, or `usual` for an empty slug.

    Raises Http404 for any other slug.
    """
    if not slug:
        return usual
    found = next((tenant for tenant in tenants if tenant.slug == slug), None)
    if found is None:
        raise Http404
    return found


def _usual_period(visible: list[Tenant], now: datetime) -> str:
    """Returns the name of the default period of what the user sees of these teams."""
    return usual_period(now, is_young=is_young([tenant.pk for tenant in visible]))


def own_tenants(user: User) -> set[int]:
    """Returns the ids of the tenants in which the user has a role, and of all tenants below them."""
    return set(ids_with_role(user))


_clusters = Prepared(lambda: Cluster.objects.order_by(*by_name("name")).only("name", *ROUND_LENGTH))
