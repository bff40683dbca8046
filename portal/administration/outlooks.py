"""How the budgets of a tenant stand now."""

from __future__ import annotations

from accounting.actions.budgets import Outlook, outlook
from accounting.clock import now_from_database
from accounting.models import Tenant
from scheduling.limits import unbooked


def outlooks_of(tenant: Tenant) -> list[Outlook]:
    budgets = list(tenant.budgets.select_related("tenant"))
    held = unbooked() if budgets else []
    now = now_from_database()
    return [outlook(budget, now=now, held=held) for budget in budgets]
