"""Endpoints for budgets of teams, with the amounts spent and forecast."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting import actions
from accounting.access.permissions import changeable_where
from accounting.actions.budgets import Outlook, signing_key_for
from accounting.models import Budget
from portal.api.budgets import schemas
from portal.api.limits.endpoints import readable
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.limits.budget_status import outlooks
from scheduling.models.versions import version_of

router = Router(tags=["Administration"])


@router.get("/budgets", response=list[schemas.Budget], url_name="budgets")
def budgets(request: ApiRequest, team: str) -> list[dict[str, Any]]:
    """Returns the budgets of a team, each with the amounts spent and forecast. For the team's managers and for
    operators."""
    return [_show(stands) for stands in outlooks(tenant=readable(request.auth, team))]


@router.put("/budgets", response=schemas.SetBudget, url_name="budgets")
def set_budget(request: ApiRequest, new: schemas.NewBudget, if_match: IfMatch = None) -> dict[str, Any]:
    """Sets a team's budget per calendar month or quarter. Optional settings that are left out keep their values.

    For admins and for managers of the team. An amount that a manager sets must not exceed the budget of any team above
    for the same kind of period.

    `signing_key` in the response is the key that signs the webhook calls. It is null unless the caller is an admin, or
    is the manager who set the webhook address.
    """
    tenant = get_object_or_404(changeable_where(request.auth, "budget.set"), slug=new.team)
    terms = new.dict(exclude={"team"})
    budget = actions.set_budget(actor=request.auth, tenant=tenant, seen=versions_in(if_match), **terms)
    return {
        "id": budget.pk,
        "version": version_of(budget),
        "signing_key": signing_key_for(request.auth, budget),
    }


@router.delete("/budgets/{int:budget_id}", response={204: None}, url_name="budget")
def remove_budget(request: ApiRequest, budget_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Removes a budget. For managers of the team and for admins."""
    tenants = changeable_where(request.auth, "budget.set")
    in_force = Budget.objects.in_force().filter(tenant__in=tenants).select_related("tenant")
    budget = get_object_or_404(in_force, pk=budget_id)
    actions.remove_budget(actor=request.auth, budget=budget, seen=versions_in(if_match))
    return Status(204, None)


def _show(stands: Outlook) -> dict[str, Any]:
    budget = stands.budget
    names = ("id", "period", "amount", "percentages", "by_forecast")
    return {name: getattr(budget, name) for name in names} | {
        "version": version_of(budget),
        "team": budget.tenant.slug,
        "begins": stands.begins,
        "ends": stands.ends,
        "spent": stands.spent,
        "forecast": stands.forecast,
    }
