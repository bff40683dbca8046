"""The history of tickets, limits and budgets. Database triggers write its rows."""

from __future__ import annotations

from django.db import models

from accounting.models.budgets import Budget
from accounting.models.quotas import Quota


class TicketChange(models.Model):
    """Represents the tickets of a tenant, or of a user in a tenant, from the time `at` until the next change.

    `tickets` is None if the tenant was archived or the user left the tenant. Triggers add a row for each change, and
    rows never change (accounting/migrations/0013, 0014).
    """

    tenant_id = models.BigIntegerField()  # the tenant may have been deleted since
    user_id = models.BigIntegerField(null=True)
    tickets = models.PositiveIntegerField(null=True)
    at = models.DateTimeField(null=True)  # None: in force when recording began

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.tickets or 'no'} tickets from {self.at}"


class QuotaChange(models.Model):
    """Represents the amount of a limit from the time `at` until the next change.

    `limit` is None if the limit was removed. Triggers add a row for each change. They also ensure that only the amount
    of a limit can change.
    """

    quota_id = models.BigIntegerField()
    tenant_id = models.BigIntegerField()
    user_id = models.BigIntegerField(null=True)
    each_user = models.BooleanField()
    generation_id = models.BigIntegerField(null=True)
    kind = models.CharField(max_length=20, choices=Quota.Kind)
    period = models.CharField(max_length=10, choices=Quota.Period, blank=True)
    days = models.PositiveSmallIntegerField(null=True)
    at_limit = models.CharField(max_length=10, choices=Quota.AtLimit)
    limit = models.DecimalField(max_digits=14, decimal_places=3, null=True)  # None: it was removed
    at = models.DateTimeField(null=True)  # None: in force when recording began

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} limit of {self.limit} from {self.at}"


class BudgetChange(models.Model):
    """Represents the amount of a tenant's budget from the time `at` until the next change.

    `amount` is None if the budget was removed. Triggers add a row for each change.
    """

    tenant_id = models.BigIntegerField()
    period = models.CharField(max_length=10, choices=Budget.Period)
    amount = models.DecimalField(max_digits=14, decimal_places=2, null=True)  # None: it was removed
    at = models.DateTimeField(null=True)  # None: in force when recording began

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["tenant_id"], name="budget_changes_of_a_tenant")]

    def __str__(self) -> str:
        return f"budget of {self.amount} from {self.at}"
