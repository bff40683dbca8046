"""Reads how much of each budget is spent, including usage that the ledger does not contain yet."""

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
    """Reads the status (spending and forecast) of budgets as of one moment.

    After a database error for one budget, the others can still be read.
    """

    now: datetime
    held: Sequence[UnbookedUsage]

    def present(self, budget: Budget) -> Outlook:
        """Returns a budget's status (spending and forecast) in the current budget period."""
        with transaction.atomic():
            return outlook(budget, now=self.now, held=self.held)

    def past(self, budget: Budget) -> Outlook | None:
        """Returns a budget's status at the end of the previous budget period. The forecast is then the final spending.

        Returns None if the previous period ended more than a day ago, or if the budget did not exist when that period
        ended.
        """
        with transaction.atomic():
            return outlook_back(budget, now=self.now, held=self.held)


@contextmanager
def consistent_budgets(**which: object) -> Iterator[tuple[Sequence[Budget], BudgetReader]]:
    """Context manager that yields the budgets in force and a BudgetReader for them, read in one database snapshot.

    `which` are query filters for the budgets.
    """
    # One snapshot, so that usage that is booked meanwhile counts exactly once.
    with consistent_read():
        budgets = list(Budget.objects.in_force().filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        yield budgets, BudgetReader(now_from_database(), held)


def outlooks(**which: object) -> list[Outlook]:
    """Returns the status (spending and forecast) of each budget in force that matches the query filters in `which`."""
    with consistent_budgets(**which) as (budgets, reader):
        return [reader.present(budget) for budget in budgets]
