"""Endpoints for shares of teams, and for trades."""

from __future__ import annotations

from typing import Any, Literal

from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Query, Router

from accounting.access.visibility import visible_ids
from accounting.core.name_order import by_name
from accounting.models import Tenant
from accounting.reports.trade_totals import BookedTrades, booked_trades
from portal.api.shares import schemas
from portal.reports.scope import chosen_cluster, chosen_tenant
from portal.share.periods import asked_stretch, read_period
from portal.share.trade_book import trades_in_format
from portal.user_request import ApiRequest
from scheduling.models import Cluster
from scheduling.reports.trades import SeenTrade, read_trades, seen
from scheduling.shares.series import POINTS, read_share

router = Router(tags=["Reports"])

PeriodName = Literal["today", "1h", "24h", "7d", "30d"]


@router.get("/share", response=schemas.Share, url_name="share", operation_id="portal_api_reports_share")
def share(request: ApiRequest, team: str, period: PeriodName = "24h", cluster: str = "") -> dict[str, Any]:
    """Returns the GPU time on one cluster that a team was entitled to and received, including the teams below it.

    Without `cluster`, the first cluster by name is used.
    """
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    shared = chosen_cluster(request.GET, list(Cluster.objects.order_by(*by_name("name"))))
    stretch = read_period(period)
    return {
        "team": tenant.slug,
        "cluster": shared.name if shared else None,
        "begins": stretch.begins,
        "ends": stretch.ends,
        "step_seconds": stretch.seconds / POINTS,
        "generations": [
            {"generation": one.generation.name, "total": one.total, "owed": one.owed, "points": one.points}
            for one in (
                read_share(request.auth, tenant, shared, stretch.begins, stretch.ends) if shared else ()
            )
        ],
    }


@router.get(
    "/trades", response=schemas.TradePage, url_name="trades", operation_id="portal_api_reports_trades"
)
def trades(request: ApiRequest, asked: Query[schemas.TradeQuestion]) -> dict[str, Any] | HttpResponseBase:
    """Returns one page of the trades of the caller's teams, newest first.

    To get the next page, with older trades, set `before` to this page's `next`, which is null on the last page. Formats
    other than JSON contain all trades of the period, and the GPU-seconds that the ledger booked for trades.
    """
    if asked.format != "json":
        return trades_in_format(request.auth, request.GET, asked.format)
    tenant = chosen_tenant(request.auth, request.GET)
    period = asked_stretch(request.GET)
    found = read_trades(request.auth, period.begins, period.ends, generation=asked.generation, tenant=tenant)
    if asked.before is not None:
        found = found.filter(pk__lt=asked.before)
    some = list(found[: asked.limit + 1])
    return {
        "items": [_show_trade(trade) for trade in seen(some[: asked.limit], visible_ids(request.auth))],
        "next": some[asked.limit - 1].pk if len(some) > asked.limit else None,
    }


@router.get(
    "/trades/booked",
    response=list[schemas.BookedTrades],
    url_name="booked_trades",
    operation_id="portal_api_reports_trades_booked",
)
def trades_booked(request: ApiRequest, asked: Query[schemas.TradePeriod]) -> list[BookedTrades]:
    """Returns the GPU-seconds that the caller's teams gave and got in trades, as booked in the ledger, by generation.

    Operators get the totals of all teams. Over all teams, the given and the received GPU-seconds of a generation are
    equal.
    """
    stretch = asked_stretch(request.GET)
    tenants = None if request.auth.is_operator else visible_ids(request.auth)
    return booked_trades(stretch.begins, stretch.ends, tenants)


def _show_trade(trade: SeenTrade) -> dict[str, Any]:
    sides = [
        {
            "team": side.tenant.slug,
            "gave": side.gave,
            "gave_generation": side.gave_generation,
            "got": side.got,
            "got_generation": side.got_generation,
            "speedup": side.speedup,
            "without": side.worth.without,
            "with_trade": side.worth.with_trade,
            "gain": side.gain,
        }
        for side in trade.sides
    ]
    same = ("id", "begins", "ends", "fast", "slow", "price", "counterpart")
    return {name: getattr(trade, name) for name in same} | {"sides": sides}
