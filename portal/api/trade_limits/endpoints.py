"""Endpoints for the trade limits of a team."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from ninja import Router

from accounting.models import Tenant
from portal.api.limits.endpoints import generation_named
from portal.api.trade_limits import schemas
from portal.user_request import ApiRequest
from scheduling.limits import actions as limit_actions
from scheduling.limits.actions import Allowance
from scheduling.models import TradeLimit

router = Router(tags=["Reports"])


@router.get("/trade-limits", response=list[schemas.TradeLimit], url_name="trade_limits")
def trade_limits(request: ApiRequest, team: str) -> list[dict[str, Any]]:
    """Returns the trade limits that are set on a team. The trade limits of the teams above also apply to this team."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    return [_show(limit) for limit in tenant.trade_limits.select_related("generation")]


@router.put("/trade-limits", response=list[schemas.TradeLimit], url_name="trade_limits")
def set_trade_limits(
    request: ApiRequest, team: str, limits: list[schemas.TradeLimit]
) -> list[dict[str, Any]]:
    """Replaces all trade limits of a team that the caller manages. An empty list removes all trade limits."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    allowances = [
        Allowance(generation_named(one.generation), one.trades, one.most_gpus, one.most_part)
        for one in limits
    ]
    made = limit_actions.set_trade_limits(actor=request.auth, tenant=tenant, allowances=allowances)
    return [_show(limit) for limit in made]


def _show(limit: TradeLimit) -> dict[str, Any]:
    same = ("trades", "most_gpus", "most_part")
    generation = limit.generation.name if limit.generation else ""
    return {name: getattr(limit, name) for name in same} | {"generation": generation}
