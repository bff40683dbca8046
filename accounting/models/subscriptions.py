"""Who gets which report by mail, and of which periods it was sent."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models.tenants import Tenant, User


class ReportSubscriptionQuerySet(models.QuerySet["ReportSubscription"]):
    def of(self, user: User) -> Self:
        return self.filter(user=user)


class ReportSubscription(models.Model):
    """A user gets a report after each period: the statement of a team, or one of those for operators, of all clusters.

    It lasts for as long as the user may see the team, or is an operator.
    """

    class Report(models.TextChoices):
        STATEMENT = "statement", "Statement"
        USE = "use", "Use and demand"
        NODES = "nodes", "Nodes"
        WAITS = "waits", "Waits"
        WASTE = "waste", "Waste"
        PRICES = "prices", "Prices"
        CHARGEBACK = "chargeback", "Chargeback"
        CAPACITY = "capacity", "Capacity"
        FAIRNESS = "fairness", "Fairness"

    class Rhythm(models.TextChoices):
        WEEKLY = "weekly", "each Monday, of the week before"
        MONTHLY = "monthly", "on the first of a month, of the month before"

    class Form(models.TextChoices):
        PDF = "pdf", "as PDF"
        XLSX = "xlsx", "as XLSX"
        CSV = "csv", "as CSV"
        LINK = "link", "as a link only"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="report_subscriptions")
    report = models.CharField(max_length=20, choices=Report, default=Report.STATEMENT)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, null=True, related_name="report_subscriptions"
    )
    rhythm = models.CharField(max_length=10, choices=Rhythm)
    form = models.CharField(max_length=10, choices=Form, default=Form.PDF)
    created_at = models.DateTimeField(db_default=Now())

    objects = ReportSubscriptionQuerySet.as_manager()

    class Meta:
        ordering = ["report", "tenant__name", "rhythm"]
        constraints = [
            models.UniqueConstraint(
                name="one_subscription_a_rhythm",
                fields=["user", "report", "tenant", "rhythm"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="a_statement_is_of_a_team",
                condition=models.Q(report="statement", tenant__isnull=False)
                | (~models.Q(report="statement") & models.Q(tenant__isnull=True)),
            ),
        ]

    def __str__(self) -> str:
        return (
            f"statement of {self.tenant.name}"
            if self.tenant
            else f"{self.get_report_display()} for operators"
        )


class ReportDelivery(models.Model):
    """That a letter was written of the period that began on this day of its reader's."""

    subscription = models.ForeignKey(ReportSubscription, on_delete=models.CASCADE, related_name="deliveries")
    first = models.DateField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(name="one_report_a_period", fields=["subscription", "first"])]

    def __str__(self) -> str:
        return f"{self.subscription} from {self.first}"
