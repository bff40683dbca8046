"""Budgets: planned spending for a period, with warnings to the team.

A budget never blocks jobs; a limit on money can.
"""

from __future__ import annotations

import secrets
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from accounting.models.outbox import OutboxItem
from accounting.models.tenants import Tenant, User


def new_nonce() -> str:
    return secrets.token_hex(8)


class BudgetQuerySet(models.QuerySet["Budget"]):
    def in_force(self) -> Self:
        return self.filter(removed_at=None)


class Budget(models.Model):
    """Represents the money that a tenant with its subtree plans to spend in each calendar month or quarter (UTC).

    When a budget is removed, its row stays, with its warnings and unsent messages. If the budget is set again, the row
    is reused.
    """

    class Period(models.TextChoices):
        MONTH = "month", "calendar month (UTC)"
        QUARTER = "quarter", "calendar quarter (UTC)"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="budgets")
    period = models.CharField(max_length=10, choices=Period, default=Period.MONTH)
    amount = models.DecimalField(max_digits=14, decimal_places=2)
    percentages = ArrayField(
        models.PositiveSmallIntegerField(),
        help_text="Percentages of the amount at which managers are warned.",
    )
    by_forecast = models.BooleanField(default=True)
    webhook_url = models.CharField(max_length=500, blank=True)
    # None: Fairlot itself set the address, or nobody knows who did.
    webhook_set_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    # The signing key of webhook calls depends on the nonce: a new nonce gives a new key.
    nonce = models.CharField(max_length=16, default=new_nonce)
    removed_at = models.DateTimeField(null=True)

    objects = BudgetQuerySet.as_manager()

    class Meta:
        ordering = ["tenant", "period"]
        constraints = [
            models.UniqueConstraint(name="one_budget_a_tenant_and_period", fields=["tenant", "period"]),
            models.CheckConstraint(name="a_budget_is_of_some_money", condition=models.Q(amount__gt=0)),
        ]

    def __str__(self) -> str:
        return f"budget of {self.tenant.name}"

    def signing_key(self) -> str:
        """Returns the key that signs the budget's webhook calls, derived from Fairlot's SECRET_KEY and the budget's
        nonce."""
        return _signing_key(self.pk, self.nonce)


def _signing_key(budget: int, nonce: str) -> str:
    return salted_hmac("fairlot.webhook", f"{budget}:{nonce}", algorithm="sha256").hexdigest()


class BudgetWarning(models.Model):
    """Represents a warning that was sent. In each period, each threshold has at most one warning in force.

    If the amount of the budget changes, a new warning may replace an earlier one for the same threshold.
    """

    FORECAST = "forecast"

    budget = models.ForeignKey(Budget, on_delete=models.PROTECT, related_name="warnings")
    begins = models.DateTimeField(help_text="Start of the budget period.")
    threshold = models.CharField(
        max_length=10,
        help_text=(
            "Percentage of the budget at which the warning is sent,"
            " or “forecast” for a warning about the forecast."
        ),
    )
    amount = models.DecimalField(max_digits=14, decimal_places=2)
    at = models.DateTimeField(db_default=Now())
    spent = models.DecimalField(max_digits=24, decimal_places=6)
    forecast = models.DecimalField(max_digits=24, decimal_places=6, null=True)
    lifted_at = models.DateTimeField(
        null=True,
        help_text="Time at which a new warning replaced this one; null while this warning is in force.",
    )

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(
                name="one_warning_of_each_kind_a_period",
                fields=["budget", "begins", "threshold"],
                condition=models.Q(lifted_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"warning at {self.threshold} for the {self.budget}"


class WebhookCall(OutboxItem):
    """Represents a webhook call in the outbox, to the webhook of a budget or to a notification channel.

    A call of a budget keeps the address and the signing key that the budget had when the call was stored. A call of a
    channel goes to the address that the channel has when it is made.
    """

    budget = models.ForeignKey(Budget, on_delete=models.PROTECT, null=True, related_name="calls")
    channel = models.ForeignKey(
        "NotificationChannel", on_delete=models.CASCADE, null=True, related_name="calls"
    )
    url = models.CharField(max_length=500, blank=True, default="")
    nonce = models.CharField(
        max_length=16,
        blank=True,
        default="",
        help_text=(
            "Random value (nonce) of the budget, copied when this call was stored."
            " The key that signs the call is derived from this value."
        ),
    )
    body = models.TextField()

    class Meta:
        indexes = [models.Index(fields=["not_before"], condition=models.Q(sent_at=None), name="webhook_due")]
        constraints = [
            models.CheckConstraint(
                name="a_call_is_of_a_budget_or_a_channel",
                condition=models.Q(budget__isnull=False, channel=None)
                | models.Q(budget=None, channel__isnull=False, url=""),
            )
        ]

    def __str__(self) -> str:
        return f"webhook {self.identity}"

    def signing_key(self) -> str:
        if self.budget_id is not None:
            return _signing_key(self.budget_id, self.nonce)
        assert self.channel is not None  # noqa: S101 - the database says so
        return self.channel.signing_key()
