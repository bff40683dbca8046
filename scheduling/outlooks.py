"""How budgets stand now."""

from __future__ import annotations

from accounting.actions.budgets import Outlook, outlook
from accounting.clock import now_from_database
from accounting.models import Budget
from accounting.one_moment import one_moment
from scheduling.limits import unbooked


def outlooks(**which: object) -> list[Outlook]:
    """Of all budgets, or of those of which this is true.

    The ledger and what is not in it yet are read in one moment: what is booked meanwhile is in one of them alone.
    """
    with one_moment():
        budgets = list(Budget.objects.filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        now = now_from_database()
        return [outlook(budget, now=now, held=held) for budget in budgets]
