"""Shares, trades, usage, and the caller."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router

from accounting.core.consistent_read import one_moment
from accounting.core.name_order import by_name
from accounting.models import Tenant
from accounting.reports.trade_totals import BookedTrades, booked_trades
from portal.api import schemas
from portal.api.auth import require_permission
from portal.reports.capacity import capacity_facts, capacity_file, read_capacity
from portal.reports.formats import json_of, json_of_facts
from portal.reports.statement.figures import statement_of
from portal.reports.statement.tables import document_of
from portal.reports.statement.views import file_name, file_of, is_whole, read_request
from portal.reports.views import asked_key, read_report, usage_facts, usage_file
from portal.share.periods import asked_stretch, read_period
from portal.share.queries import POINTS, read_share
from portal.share.trade_book import trades_file
from portal.share.trades import SeenTrade, read_trades, seen, visible_ids
from portal.share.views import chosen_cluster
from scheduling.models import Cluster

router = Router(tags=["Reports"])

PeriodName = Literal["1h", "24h", "7d", "30d"]
Form = Literal["json", "csv", "xlsx", "pdf"]


@router.get("/me", response=schemas.Me, url_name="me")
def me(request: HttpRequest) -> dict[str, Any]:
    """Who is calling, and in which teams."""
    user = request.auth
    return {
        "username": user.get_username(),
        "name": user.get_full_name(),
        "role": user.portal_role,
        "teams": [
            {"team": one.tenant.slug, "role": one.role, "tickets": one.tickets}
            for one in user.memberships.select_related("tenant").order_by(*by_name("tenant__name"))
        ],
    }


@router.get("/share", response=schemas.Share, url_name="share")
def share(request: HttpRequest, team: str, period: PeriodName = "24h", cluster: str = "") -> dict[str, Any]:
    """What a team was entitled to and got, with all teams below it, on one cluster (the first by name)."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    shared = chosen_cluster(cluster, list(Cluster.objects.order_by(*by_name("name"))))
    stretch = read_period(period)
    return {
        "team": tenant.slug,
        "cluster": shared.name if shared else None,
        "begins": stretch.begins,
        "ends": stretch.ends,
        "step_seconds": stretch.seconds / POINTS,
        "generations": [
            {"generation": one.generation.name, "total": one.total, "owed": one.owed, "points": one.points}
            for one in (read_share(request.auth, tenant, stretch, shared) if shared else ())
        ],
    }


@router.get("/trades", response=schemas.TradePage, url_name="trades")
def trades(request: HttpRequest, asked: Query[schemas.TradeQuestion]) -> dict[str, Any] | HttpResponse:
    """Trades of the caller's teams, latest first; ask again with `before` = `next` for older ones.

    Other formats have all of the period, and what was booked."""
    if asked.format != "json":
        request.user = request.auth
        return trades_file(request, asked.format)
    visible = Tenant.objects.visible_to(request.auth)
    tenant = get_object_or_404(visible, slug=asked.team) if asked.team else None
    period = asked_stretch(request)
    found = read_trades(request.auth, period, generation=asked.generation, tenant=tenant)
    if asked.before is not None:
        found = found.filter(pk__lt=asked.before)
    some = list(found[: asked.limit + 1])
    return {
        "items": [_show_trade(trade) for trade in seen(some[: asked.limit], visible_ids(request.auth))],
        "next": some[asked.limit - 1].pk if len(some) > asked.limit else None,
    }


@router.get("/trades/booked", response=list[schemas.BookedTrades], url_name="booked_trades")
def trades_booked(request: HttpRequest, asked: Query[schemas.TradePeriod]) -> list[BookedTrades]:
    """What the ledger has of the trades of the caller's teams; for operators of all, which sums to zero."""
    stretch = asked_stretch(request)
    tenants = None if request.auth.is_operator else visible_ids(request.auth)
    return booked_trades(stretch.begins, stretch.ends, tenants)


@router.get("/usage", response=schemas.Usage, url_name="usage")
def usage(
    request: HttpRequest,
    days: Query[schemas.Days],
    by: Literal["user", "job", "generation", "day", "label", "tenant"] = "user",
    team: str = "",
    *,
    label: str = "",
    format: Form = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponse:
    """The usage report; `by=label` is by the values of the key `label`, null for jobs without it."""
    request.user = request.auth
    if format != "json":
        return usage_file(request, format)
    with one_moment():
        tenant, group, bounds, report = read_report(request)
        key = asked_key(request, tenant, group)
        facts = usage_facts(request.user, tenant, group, bounds, report, key=key)
    told = {"begins": bounds.begins, "ends": bounds.ends, "rows": report.rows, "totals": report.totals}
    return told | {"facts": json_of_facts(facts), "lacks_before": report.lacks_before}


@router.get("/statement", response=schemas.Statement, url_name="statement")
def statement(
    request: HttpRequest,
    query: Query[schemas.StatementQuery],
) -> dict[str, Any] | HttpResponse:
    """A team's statement, with all below it. `part` names one table, for CSV."""
    request.user = request.auth
    tenant, period = read_request(request)
    document = document_of(statement_of(request.user, tenant, period, whole=is_whole(query.format)))
    if query.format != "json":
        return file_of(document, query.format, file_name(tenant, period), part=query.part)
    return {"team": tenant.slug, "begins": period.begins, "ends": period.ends} | json_of(document)


@router.get("/capacity", response=schemas.Capacity, url_name="capacity")
def capacity(
    request: HttpRequest,
    days: Query[schemas.Days],
    cluster: str = "",
    format: Form = "json",  # noqa: A002
) -> dict[str, Any] | HttpResponse:
    """What all GPUs were in closed hours, and who bears what they were worth; for operators."""
    request.user = request.auth
    require_permission(request, "report.all")
    if format != "json":
        return capacity_file(request, format)
    chosen, period, report = read_capacity(request)
    return {
        "facts": json_of_facts(capacity_facts(chosen, period, report)),
        "begins": report.begins,
        "ends": report.ends,
        "closed_until": report.until,
        "generations": [
            {"generation": row.generation, "gpu_seconds": row.seconds, "capacity_gpu_seconds": row.capacity}
            | {"value": row.value, "currency": row.currency}
            for row in report.rows
        ],
        "identities": [
            {
                "currency": one.currency,
                "tenants": one.tenants,
                "taken_back": one.waived,
                "classes": one.classes,
                "unallocated": one.unallocated,
                "used_by_others": one.others,
                "rounding": one.rounding,
                "drained": one.drained,
                "down": one.down,
                "value": one.value,
                "closes": one.closes,
            }
            for one in report.identities
        ],
    }


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
