"""Budget forms, shared by the pages of admins and the pages of team managers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404

from accounting import actions
from accounting.actions.budgets import signing_key_for
from accounting.models import Budget, Tenant, User
from portal.forms.budget import BudgetForm
from portal.forms.form import Form
from portal.forms.posting import perform
from portal.user_request import UserRequest
from scheduling.limits.budget_status import outlooks


def budgets_of(tenant: Tenant, reader: User, posted: Form | None) -> dict[str, Any]:
    """Returns the context of administration/budgets.html: a team's budgets with the amounts spent, and a form for each
    kind of period (month or quarter).

    - `reader`: the user who opens the page. The context contains the key for the budget's webhook calls only if this
      user may see the key.
    - `posted`: a refused form, which is shown again with its problems; None if no form was refused.
    """
    rows = [(stands, signing_key_for(reader, stands.budget)) for stands in outlooks(tenant=tenant)]
    known = {stands.budget.period: stands.budget for stands, _ in rows}
    forms = [BudgetForm(one, budget=known.get(one)).or_posted(posted) for one in Budget.Period.values]
    return {"budgets": rows, "budget_forms": forms, "currency": settings.FAIRLOT_CURRENCY}


def set_budget_of(
    request: UserRequest, tenant: Tenant, *, to: str, page: Callable[..., HttpResponse]
) -> HttpResponse:
    """Sets the posted budget, and redirects to the page with the URL name `to`.

    If the budget is refused, returns `page(request, slug=tenant.slug, posted=form)` instead: the page with the refused
    form and its problems.
    """
    # If the period's field is invalid, the query of the form's URL still names the period.
    asked = (request.POST.get("budget_period"), request.GET.get("period"), Budget.Period.MONTH)
    return perform(
        request,
        BudgetForm(next(one for one in asked if one in Budget.Period.values), request),
        lambda values: actions.set_budget(
            actor=request.user, tenant=tenant, period=values.pop("budget_period"), **values
        ),
        done=f"The budget of the team {tenant.name} has been saved.",
        to=(to, tenant.slug),
        page=partial(page, slug=tenant.slug),
    )


def remove_budget_of(
    request: UserRequest, tenant: Tenant, pk: int, *, to: str, page: Callable[..., HttpResponse]
) -> HttpResponse:
    """Removes the tenant's budget with the primary key `pk`, and redirects to the page with the URL name `to`.

    If the removal is refused, returns `page(request, slug=tenant.slug, posted=form)` instead: the page with the
    problems. Raises Http404 if the tenant has no such budget.
    """
    budget = get_object_or_404(Budget.objects.in_force().select_related("tenant"), tenant=tenant, pk=pk)
    return perform(
        request,
        Form(f"budget-{pk}", request),
        lambda _: actions.remove_budget(actor=request.user, budget=budget),
        done="The budget has been removed.",
        to=(to, tenant.slug),
        page=partial(page, slug=tenant.slug),
    )
