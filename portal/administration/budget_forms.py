"""From the forms of budgets to actions, on the pages of admins and of managers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from accounting import actions
from accounting.actions.budgets import USUAL_PERCENTAGES, signing_key_for
from accounting.core.errors import Refused
from accounting.models import Budget, Tenant, User
from portal.administration.forms import decimal, perform
from scheduling.limits.budget_status import outlooks

NUMBERS = re.compile(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*)*", re.ASCII)


def budgets_of(tenant: Tenant, reader: User) -> dict[str, Any]:
    """What administration/budgets.html shows: how budgets stand, and the form of each period as it is set."""
    rows = [(stands, signing_key_for(reader, stands.budget)) for stands in outlooks(tenant=tenant)]
    known = {stands.budget.period: stands.budget for stands, _ in rows}
    forms = [
        (period, known.get(period) or Budget(percentages=list(USUAL_PERCENTAGES)))
        for period in Budget.Period.values
    ]
    return {"budgets": rows, "budget_forms": forms, "currency": settings.FAIRLOT_CURRENCY}


def set_budget_of(
    request: HttpRequest, tenant: Tenant, *, to: str, page: Callable[..., HttpResponse]
) -> HttpResponse:
    """Sets the budget that was posted, and goes on to the page named `to`."""
    period = request.POST.get("budget_period", "")
    asked = (period, request.GET.get("period"), Budget.Period.MONTH)  # the form's address names it, too
    return perform(
        request,
        f"budget-{next(one for one in asked if one in Budget.Period.values)}",
        lambda post: actions.set_budget(
            actor=request.user,
            tenant=tenant,
            amount=decimal(post, "amount"),
            period=period,
            percentages=read_percentages(post.get("percentages", "")),
            by_forecast="by_forecast" in post,
            webhook_url=post.get("webhook_url", ""),
        ),
        done=f"The budget of {tenant.name} is set.",
        to=(to, tenant.slug),
        page=partial(page, slug=tenant.slug),
    )


def remove_budget_of(
    request: HttpRequest, tenant: Tenant, pk: int, *, to: str, page: Callable[..., HttpResponse]
) -> HttpResponse:
    """Removes one of the tenant's budgets, and goes on to the page named `to`."""
    budget = get_object_or_404(Budget.objects.in_force().select_related("tenant"), tenant=tenant, pk=pk)
    return perform(
        request,
        f"budget-{pk}",
        lambda post: actions.remove_budget(actor=request.user, budget=budget),
        done="The budget is removed.",
        to=(to, tenant.slug),
        page=partial(page, slug=tenant.slug),
    )


def read_percentages(text: str) -> list[int]:
    if not NUMBERS.fullmatch(text):
        raise Refused("These must be whole numbers with commas between, such as 80, 100.", "percentages")
    return [int(one) for one in text.split(",")]
