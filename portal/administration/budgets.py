"""The budgets of a team, with the amounts spent."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.budgets import signing_key_for
from accounting.models import Budget, Tenant
from portal.administration.place import BUDGETS, Place, of_team, posted_to, show_part
from portal.forms.budget import BudgetForm
from portal.forms.form import Form
from portal.forms.posting import perform
from portal.user_request import UserRequest
from scheduling.limits.budget_status import outlooks


def budgets_page(
    request: UserRequest, *, place: Place, tenant: Tenant, posted: Form | None = None
) -> HttpResponse:
    """Shows the budgets, and a form for each kind of period (month or quarter).

    The page has the key for a budget's webhook calls only if the reader may see it.
    """
    rows = [(stands, signing_key_for(request.user, stands.budget)) for stands in outlooks(tenant=tenant)]
    known = {stands.budget.period: stands.budget for stands, _ in rows}
    forms = [BudgetForm(one, budget=known.get(one)).or_posted(posted) for one in Budget.Period.values]
    context = {"budgets": rows, "budget_forms": forms, "currency": settings.FAIRLOT_CURRENCY}
    return show_part(request, "budgets", context, place=place, tenant=tenant, part=BUDGETS, posted=posted)


@require_safe
@of_team
def budgets(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return budgets_page(request, place=place, tenant=tenant)


@posted_to(BUDGETS)
def set_budget(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    # If the period's field is invalid, the query of the form's URL still names the period.
    asked = (request.POST.get("budget_period"), request.GET.get("period"), Budget.Period.MONTH)
    return perform(
        request,
        BudgetForm(next(one for one in asked if one in Budget.Period.values), request),
        lambda values: actions.set_budget(
            actor=request.user, tenant=tenant, period=values.pop("budget_period"), **values
        ),
        done=f"The budget of the team {tenant.name} has been saved.",
        to=(place.name(BUDGETS), tenant.slug),
        page=partial(budgets_page, place=place, tenant=tenant),
    )


@posted_to(BUDGETS)
def remove_budget(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    budget = get_object_or_404(Budget.objects.in_force().select_related("tenant"), tenant=tenant, pk=pk)
    return perform(
        request,
        Form(f"budget-{pk}", request),
        lambda _: actions.remove_budget(actor=request.user, budget=budget),
        done="The budget has been removed.",
        to=(place.name(BUDGETS), tenant.slug),
        page=partial(budgets_page, place=place, tenant=tenant),
    )
