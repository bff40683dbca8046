"""The page that shows users the limits that managers and admins have set on them."""

from __future__ import annotations

from collections import defaultdict

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name
from accounting.models import Membership
from portal.user_request import UserRequest
from scheduling.limits.usage import limits_on


@require_safe
def own_limits(request: UserRequest) -> HttpResponse:
    """Shows the limits on the user with what is used of each, and who can raise those that managers set."""
    found = limits_on(request.user, now=now_from_database())
    teams = {one.quota.tenant_id for one in found if one.quota.by_managers}
    managers: dict[int, list[str]] = defaultdict(list)
    rows = Membership.objects.filter(tenant__in=teams, role=Membership.Role.MANAGER, user__is_active=True)
    for tenant, name in rows.order_by(*by_name("user__username")).values_list("tenant", "user__username"):
        managers[tenant].append(name)
    shown = [(one, managers[one.quota.tenant_id] if one.quota.by_managers else []) for one in found]
    return render(request, "account/limits.html", {"limits": shown})
