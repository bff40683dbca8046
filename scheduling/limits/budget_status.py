"""The present state of budgets."""

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
    """Reads the state of budgets. A database error for one budget does not prevent reading the others."""

    now: datetime
    held: Sequence[UnbookedUsage]

    def present(self, budget: Budget) -> Outlook:
        """Returns a budget's state in its present period."""
        with transaction.atomic():
            return outlook(budget, now=self.now, held=self.held)

    def past(self, budget: Budget) -> Outlook | None:
        """Returns a budget's state at the end of the period that has just ended."""
        with transaction.atomic():
            return outlook_back(budget, now=self.now, held=self.held)


@contextmanager
def consistent_budgets(**which: object) -> Iterator[tuple[Sequence[Budget], BudgetReader]]:
    """Yields all budgets in force, or those that match, with a reader of their state.

    The ledger and unbooked usage are read in one snapshot, so that usage booked meanwhile counts exactly once.
    """
    with consistent_read():
        budgets = list(Budget.objects.in_force().filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        yield budgets, BudgetReader(now_from_database(), held)


def outlooks(**which: object) -> list[Outlook]:
    """Returns the state of all budgets in force, or of those that match."""
    with consistent_budgets(**which) as (budgets, reader):
        return [reader.present(budget) for budget in budgets]
