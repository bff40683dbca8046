"""How budgets stand now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from accounting.actions.budgets import Outlook, outlook, outlook_back
from accounting.core.clock import now_from_database
from accounting.core.consistent_read import one_moment
from accounting.limits.spending import Held
from accounting.models import Budget
from scheduling.limits.caps import unbooked


@dataclass(frozen=True, slots=True)
class Moment:
    """What tells how a budget stands. What the database refuses to tell of one keeps no other from being read."""

    now: datetime
    held: Sequence[Held]

    def stand(self, budget: Budget) -> Outlook:
        with transaction.atomic():
            return outlook(budget, now=self.now, held=self.held)

    def stood(self, budget: Budget) -> Outlook | None:
        """At the end of a period that has just ended."""
        with transaction.atomic():
            return outlook_back(budget, now=self.now, held=self.held)


@contextmanager
def budgets_in_one_moment(**which: object) -> Iterator[tuple[Sequence[Budget], Moment]]:
    """All budgets in force, or those of which this is true, and what tells how one of them stands.

    The ledger and what is not in it yet are read in one moment: what is booked meanwhile is in one of them alone.
    """
    with one_moment():
        budgets = list(Budget.objects.in_force().filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        yield budgets, Moment(now_from_database(), held)


def outlooks(**which: object) -> list[Outlook]:
    """Of all budgets in force, or of those of which this is true."""
    with budgets_in_one_moment(**which) as (budgets, moment):
        return [moment.stand(budget) for budget in budgets]
