"""How budgets stand now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django.db import transaction

from accounting.actions.budgets import Outlook, outlook
from accounting.clock import now_from_database
from accounting.models import Budget
from accounting.one_moment import one_moment
from scheduling.limits import unbooked

Stand = Callable[[Budget], Outlook]


@contextmanager
def budgets_in_one_moment(**which: object) -> Iterator[tuple[Sequence[Budget], Stand]]:
    """All budgets in force, or those of which this is true, and what tells how one of them stands.

    The ledger and what is not in it yet are read in one moment: what is booked meanwhile is in one of them alone.
    """
    with one_moment():
        budgets = list(Budget.objects.in_force().filter(**which).select_related("tenant").order_by("pk"))
        held = unbooked() if budgets else []
        now = now_from_database()

        def stand(budget: Budget) -> Outlook:
            with (
                transaction.atomic()
            ):  # what the database refuses to tell of one keeps no other from being read
                return outlook(budget, now=now, held=held)

        yield budgets, stand


def outlooks(**which: object) -> list[Outlook]:
    """Of all budgets in force, or of those of which this is true."""
    with budgets_in_one_moment(**which) as (budgets, stand):
        return [stand(budget) for budget in budgets]
