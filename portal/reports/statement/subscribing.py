"""Subscribing to statements by mail, on the statement's page."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from accounting import actions
from accounting.errors import NotAllowed, Refused
from accounting.models import StatementSubscription, Tenant


@require_POST
def subscribe(request: HttpRequest) -> HttpResponse:
    slug = request.POST.get("team", "").replace("\0", "")
    tenant = get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug)
    try:
        subscription = actions.subscribe_to_statement(
            actor=request.user,
            tenant=tenant,
            rhythm=request.POST.get("rhythm", ""),
            form=request.POST.get("form", ""),
        )
    except (NotAllowed, Refused) as refused:
        messages.error(request, str(refused))
    else:
        how = f"{subscription.get_rhythm_display()}, {subscription.get_form_display()}"
        messages.success(request, f"You get the statement of {tenant.name} {how}.")
    return redirect(f"{reverse('usage_statement')}?{urlencode({'team': slug})}#by-mail")


@require_POST
def unsubscribe(request: HttpRequest, pk: int) -> HttpResponse:
    own = StatementSubscription.objects.of(request.user).select_related("tenant")
    subscription = get_object_or_404(own, pk=pk)
    actions.unsubscribe_from_statement(actor=request.user, subscription=subscription)
    messages.success(request, f"You get the statement of {subscription.tenant.name} no more.")
    return redirect(f"{reverse('usage_statement')}#by-mail")
