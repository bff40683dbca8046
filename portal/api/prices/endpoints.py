"""Endpoints for the prices of GPU types."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Price
from portal.api.auth import require_permission
from portal.api.limits.endpoints import generation_named
from portal.api.prices import schemas
from portal.user_request import ApiRequest

router = Router(tags=["Administration"])


@router.get("/prices", response=list[schemas.Price], url_name="prices")
def prices(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the past, present and planned prices of all GPU types, of each the latest first. For admins."""
    require_permission(request, "price.set")
    now = now_from_database()
    found = Price.objects.select_related("generation").order_by(*by_name("generation__name"), "-valid")
    return [_show(price, now) for price in found]


@router.post("/prices", response={201: schemas.Price}, url_name="prices")
def set_price(request: ApiRequest, new: schemas.NewPrice) -> Status[Any]:
    """Sets the price of a GPU-hour from a moment on, until the next price that is already set. For admins."""
    require_permission(request, "price.set")
    generation = generation_named(new.generation)
    if generation is None:
        raise Refused("Name a GPU type.", "generation")
    terms = new.dict(exclude={"generation"})
    price = actions.set_price(actor=request.auth, generation=generation, **terms)
    return Status(201, _show(price, now_from_database()))


@router.delete("/prices/{int:price_id}", response={204: None}, url_name="price")
def remove_price(request: ApiRequest, price_id: int) -> Status[Any]:
    """Removes a planned price, so that the price before it stays valid. For admins.

    A price that has begun stays: set another one instead.
    """
    require_permission(request, "price.set")
    price = get_object_or_404(Price.objects.select_related("generation"), pk=price_id)
    actions.remove_price(actor=request.auth, price=price)
    return Status(204, None)


def _show(price: Price, now: datetime) -> dict[str, Any]:
    names = ("id", "per_gpu_hour", "idle", "preemptible", "borrowed", "currency")
    return {name: getattr(price, name) for name in names} | {
        "generation": price.generation.name,
        "state": price.state(now),
        "since": price.valid.lower,
        "until": price.valid.upper,
    }
