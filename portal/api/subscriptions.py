"""Statements by mail, each user's own."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.models import StatementSubscription, Tenant
from portal.api import schemas

router = Router(tags=["Reports"])


@router.get("/statement/subscriptions", response=list[schemas.Subscription], url_name="subscriptions")
def subscriptions(request: HttpRequest) -> list[dict[str, Any]]:
    """Of which teams the caller gets the statement by mail."""
    return [_show(one) for one in StatementSubscription.objects.of(request.auth).select_related("tenant")]


@router.put("/statement/subscriptions", response=schemas.Subscription, url_name="subscriptions")
def subscribe(request: HttpRequest, new: schemas.NewSubscription) -> dict[str, Any]:
    """Has a team's statement sent to the caller; the same rhythm again only changes the form."""
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=new.team)
    told = new.dict(exclude={"team"})
    return _show(actions.subscribe_to_statement(actor=request.auth, tenant=tenant, **told))


@router.delete(
    "/statement/subscriptions/{int:subscription_id}", response={204: None}, url_name="subscription"
)
def unsubscribe(request: HttpRequest, subscription_id: int) -> Status:
    """Ends one of the caller's own."""
    own = StatementSubscription.objects.of(request.auth)
    subscription = get_object_or_404(own, pk=subscription_id)
    actions.unsubscribe_from_statement(actor=request.auth, subscription=subscription)
    return Status(204, None)


def _show(subscription: StatementSubscription) -> dict[str, Any]:
    names = ("id", "rhythm", "form")
    return {name: getattr(subscription, name) for name in names} | {"team": subscription.tenant.slug}
