"""Budgets of tenants: what a team means to spend, and how it stands."""

from __future__ import annotations

import re
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from accounting import actions
from accounting.errors import Refused
from accounting.models import Budget, Tenant
from portal.administration.access import admins_only, posted_from
from portal.administration.forms import decimal, perform
from portal.administration.tenants import tenant_page

NUMBERS = re.compile(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*)*", re.ASCII)


@admins_only
@posted_from("admin_tenant", "slug")
def set_budget(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        "budget",
        lambda post: actions.set_budget(
            actor=request.user,
            tenant=found,
            amount=decimal(post, "amount"),
            period=post.get("budget_period", ""),
            percentages=read_percentages(post.get("percentages", "")),
            by_forecast="by_forecast" in post,
            webhook_url=post.get("webhook_url", ""),
        ),
        done=f"The budget of {found.name} is set.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


def read_percentages(text: str) -> list[int]:
    if not NUMBERS.fullmatch(text):
        raise Refused("These must be whole numbers with commas between, such as 80, 100.", "percentages")
    return [int(one) for one in text.split(",")]


@admins_only
@posted_from("admin_tenant", "slug")
def remove_budget(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    budget = get_object_or_404(Budget.objects.in_force(), tenant__slug=slug, pk=pk)
    return perform(
        request,
        f"budget-{pk}",
        lambda post: actions.remove_budget(actor=request.user, budget=budget),
        done="The budget is removed.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )
