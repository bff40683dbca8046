"""What tickets and limits were, from when to when: written by the database itself, for whoever looks back."""

from __future__ import annotations

from django.db import models

from accounting.models.budgets import Budget
from accounting.models.quotas import Quota


class TicketChange(models.Model):
    """What tickets a tenant, or a user in it, had from a moment on, until the next change.

    None where a tenant was archived or a user left it. The database adds a row with every such change, in order, and
    lets none be changed (accounting/migrations/0013, 0014).
    """

    tenant_id = models.BigIntegerField()  # of a tenant that may have been removed since
    user_id = models.BigIntegerField(null=True)
    tickets = models.PositiveIntegerField(null=True)
    at = models.DateTimeField(null=True)  # None: they were so when this began to be written down

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.tickets or 'no'} tickets from {self.at}"


class QuotaChange(models.Model):
    """What a limit was from a moment on, until its next change, as TicketChange has it.

    Only the amount ever changes; the database sees to it.
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
    at = models.DateTimeField(null=True)  # None: it was so when this began to be written down

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.limit} from {self.at}"


class BudgetChange(models.Model):
    """What a tenant's budget was from a moment on, until its next change, as TicketChange has it."""

    tenant_id = models.BigIntegerField()
    period = models.CharField(max_length=10, choices=Budget.Period)
    amount = models.DecimalField(max_digits=14, decimal_places=2, null=True)  # None: it was removed
    at = models.DateTimeField(null=True)  # None: it was so when this began to be written down

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["tenant_id"], name="budget_changes_of_a_tenant")]

    def __str__(self) -> str:
        return f"{self.amount} from {self.at}"
