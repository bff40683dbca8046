"""Reads how much of each budget is spent, including usage that is not booked yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from accounting.actions.budgets import Outlook, outlook, outlook_back
from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.limits.spending import UnbookedUsage
from accounting.models import Budget
from scheduling.limits.caps import unbooked


@dataclass(frozen=True, slots=True)
class BudgetReader:
    """Reads the status of budgets. A database error for one budget does not prevent reading the others."""

    now: datetime
    held: Sequence[UnbookedUsage]

    def present(self, budget: Budget) -> Outlook:
        """Returns a budget's status in its present period."""
        with transaction.atomic():
            return outlook(budget, now=self.now, held=self.held)

    def past(self, budget: Budget) -> Outlook | None:
        """Returns a budget's status at the end of the previous period.

        Returns None if that period is long over or had no such budget.
        """
        with transaction.atomic():
            return outlook_back(budget, now=self.now, held=self.held)


@contextmanager
def consistent_budgets(**which: object) -> Iterator[tuple[Sequence[Budget], BudgetReader]]:
    """Context manager that yields a pair: the budgets in force, and a reader of their status.

    `which` are query filters for the budgets. The ledger and unbooked usage are read in one database snapshot, so
    that usage that is booked meanwhile counts exactly once.
    """
    with consistent_read():
        budgets = list(Budget.objects.in_force().filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        yield budgets, BudgetReader(now_from_database(), held)


def outlooks(**which: object) -> list[Outlook]:
    """Returns the status of each budget in force that matches the query filters `which`."""
    with consistent_budgets(**which) as (budgets, reader):
        return [reader.present(budget) for budget in budgets]
