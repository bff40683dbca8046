"""Who gets the statement of which team by mail, and of which periods it was sent."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models.tenants import Tenant, User


class StatementSubscriptionQuerySet(models.QuerySet["StatementSubscription"]):
    def of(self, user: User) -> Self:
        return self.filter(user=user)


class StatementSubscription(models.Model):
    """A user gets the statement of a team after each period, for as long as the user may see the team."""

    class Rhythm(models.TextChoices):
        WEEKLY = "weekly", "each Monday, of the week before"
        MONTHLY = "monthly", "on the first of a month, of the month before"

    class Form(models.TextChoices):
        PDF = "pdf", "as PDF"
        XLSX = "xlsx", "as XLSX"
        LINK = "link", "as a link only"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="statement_subscriptions")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="statement_subscriptions")
    rhythm = models.CharField(max_length=10, choices=Rhythm)
    form = models.CharField(max_length=10, choices=Form, default=Form.PDF)
    created_at = models.DateTimeField(db_default=Now())

    objects = StatementSubscriptionQuerySet.as_manager()

    class Meta:
        ordering = ["tenant__name", "rhythm"]
        constraints = [
            models.UniqueConstraint(name="one_subscription_a_rhythm", fields=["user", "tenant", "rhythm"])
        ]

    def __str__(self) -> str:
        return f"statement of {self.tenant.name}"


class StatementDelivery(models.Model):
    """That a letter was written of the period that began on this day of its reader's."""

    subscription = models.ForeignKey(
        StatementSubscription, on_delete=models.CASCADE, related_name="deliveries"
    )
    first = models.DateField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_statement_a_period", fields=["subscription", "first"])
        ]

    def __str__(self) -> str:
        return f"{self.subscription} from {self.first}"
