"""Views that set and remove the budgets of tenants on the admins' pages."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import get_object_or_404

from accounting.models import Tenant
from portal.access import permitted, posted_from
from portal.administration.budget_forms import remove_budget_of, set_budget_of
from portal.administration.tenants import tenant_page
from portal.user_request import UserRequest


@permitted("budget.set")
@posted_from("admin_tenant", "slug")
def set_budget(request: UserRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    return set_budget_of(request, tenant, to="admin_tenant", page=tenant_page)


@permitted("budget.set")
@posted_from("admin_tenant", "slug")
def remove_budget(request: UserRequest, slug: str, pk: int) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    return remove_budget_of(request, tenant, pk, to="admin_tenant", page=tenant_page)
