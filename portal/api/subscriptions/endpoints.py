"""Endpoints for the caller's subscriptions to reports by mail."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.actions.subscriptions import may_have
from accounting.models import ReportSubscription, Tenant
from portal.api.subscriptions import schemas
from portal.user_request import ApiRequest

router = Router(tags=["Reports"])


@router.get("/subscriptions", response=list[schemas.Subscription], url_name="subscriptions")
def subscriptions(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the caller's subscriptions to reports by mail."""
    return [_show(one) for one in ReportSubscription.objects.of(request.auth).select_related("tenant")]


@router.put("/subscriptions", response=schemas.Subscription, url_name="subscriptions")
def subscribe(request: ApiRequest, new: schemas.NewSubscription) -> dict[str, Any]:
    """Subscribes the caller to reports by mail, about one team or about all teams that the caller may see.

    If the caller already has a subscription with the same report, team, grouping and frequency, only its file format
    (`form`) changes.
    """
    tenant = get_object_or_404(Tenant.objects.visible_to(request.auth), slug=new.team) if new.team else None
    if new.report != ReportSubscription.Report.STATEMENT.value and not may_have(
        request.auth, new.report, tenant
    ):
        raise Http404
    terms = new.dict(exclude={"team"})
    return _show(actions.subscribe_to_report(actor=request.auth, tenant=tenant, **terms))


@router.delete("/subscriptions/{int:subscription_id}", response={204: None}, url_name="subscription")
def unsubscribe(request: ApiRequest, subscription_id: int) -> Status[Any]:
    """Ends one of the caller's subscriptions to reports by mail."""
    own = ReportSubscription.objects.of(request.auth)
    subscription = get_object_or_404(own, pk=subscription_id)
    actions.unsubscribe_from_report(actor=request.auth, subscription=subscription)
    return Status(204, None)


def _show(subscription: ReportSubscription) -> dict[str, Any]:
    names = ("id", "report", "by", "label", "rhythm", "form")
    tenant = subscription.tenant
    return {name: getattr(subscription, name) for name in names} | {"team": tenant.slug if tenant else ""}
