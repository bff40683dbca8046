"""Which trades a team allows."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router

from accounting.core.errors import Refused
from accounting.models import Generation, Tenant
from portal.api.trade_limits import schemas
from scheduling.limits import actions as limit_actions
from scheduling.limits.actions import Allowance
from scheduling.models import TradeLimit

router = Router(tags=["Reports"])


@router.get("/trade-limits", response=list[schemas.TradeLimit], url_name="trade_limits")
def trade_limits(request: HttpRequest, team: str) -> list[dict[str, Any]]:
    """What a team has said itself; limits of teams above it hold, too."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    return [_show(limit) for limit in tenant.trade_limits.select_related("generation")]


@router.put("/trade-limits", response=list[schemas.TradeLimit], url_name="trade_limits")
def set_trade_limits(
    request: HttpRequest, team: str, limits: list[schemas.TradeLimit]
) -> list[dict[str, Any]]:
    """Replaces all limits of a team that the caller manages; an empty list takes them away."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=team)
    known = {one.name: one for one in Generation.objects.all()}
    allowances = []
    for limit in limits:
        if limit.generation and limit.generation not in known:
            raise Refused(f"There is no generation {limit.generation[:40]}.", "generation")
        generation = known[limit.generation] if limit.generation else None
        allowances.append(Allowance(generation, limit.trades, limit.most_gpus, limit.most_part))
    made = limit_actions.set_trade_limits(actor=request.auth, tenant=tenant, allowances=allowances)
    return [_show(limit) for limit in made]


def _show(limit: TradeLimit) -> dict[str, Any]:
    same = ("trades", "most_gpus", "most_part")
    generation = limit.generation.name if limit.generation else ""
    return {name: getattr(limit, name) for name in same} | {"generation": generation}
