"""Subscriptions of users to reports by e-mail, and the periods for which reports were sent."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models.tenants import Tenant, User


class ReportSubscriptionQuerySet(models.QuerySet["ReportSubscription"]):
    def of(self, user: User | int) -> Self:
        return self.filter(user=user)


class ReportSubscription(models.Model):
    """Represents a user's subscription to a report that is mailed after each period.

    The report covers one team or all teams that the user may see. Some reports for operators cover the whole portal.
    The subscription ends when the user may no longer receive the report, for example after leaving the team.
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
        USAGE = "usage", "Usage"
        IDLE = "idle", "Idle GPUs"
        TRADES = "trades", "Trades"
        ANOMALIES = "anomalies", "Sharing anomalies"

    class Rhythm(models.TextChoices):
        WEEKLY = "weekly", "every Monday, about the previous week"
        MONTHLY = "monthly", "on the first day of each month, about the previous month"

    class Form(models.TextChoices):
        PDF = "pdf", "as PDF"
        XLSX = "xlsx", "as XLSX"
        CSV = "csv", "as CSV"
        LINK = "link", "as a link to the report, without a file"

    class By(models.TextChoices):
        """Lists the groupings of a usage report."""

        USER = "user", "user"
        JOB = "job", "job"
        GENERATION = "generation", "GPU"
        DAY = "day", "day"
        LABEL = "label", "label"
        TENANT = "tenant", "team"

    # Reports on one team or on all teams that the reader may see. A statement is always on one team; all other reports
    # are for operators.
    OF_TEAMS = (Report.USAGE, Report.FAIRNESS, Report.IDLE, Report.TRADES, Report.ANOMALIES)

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="report_subscriptions")
    report = models.CharField(max_length=20, choices=Report, default=Report.STATEMENT)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, null=True, related_name="report_subscriptions"
    )
    rhythm = models.CharField(max_length=10, choices=Rhythm)
    by = models.CharField(max_length=20, choices=By, blank=True, default="", db_default="")  # for usage
    label = models.CharField(
        max_length=400, blank=True, default="", db_default=""
    )  # the key, if grouped by label
    form = models.CharField(max_length=10, choices=Form, default=Form.PDF)
    created_at = models.DateTimeField(db_default=Now())

    objects = ReportSubscriptionQuerySet.as_manager()

    class Meta:
        ordering = ["report", "tenant__name", "by", "label", "rhythm"]
        constraints = [
            models.UniqueConstraint(
                name="one_subscription_a_rhythm",
                fields=["user", "report", "tenant", "by", "label", "rhythm"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="a_statement_is_of_a_team",
                condition=models.Q(report="statement", tenant__isnull=False)
                | (~models.Q(report="statement") & models.Q(tenant__isnull=True))
                | models.Q(report__in=["usage", "fairness", "idle", "trades", "anomalies"]),
            ),
            models.CheckConstraint(
                name="usage_is_by_something",
                condition=(models.Q(report="usage", by="label") & ~models.Q(label=""))
                | (models.Q(report="usage", label="") & ~models.Q(by=""))
                | (~models.Q(report="usage") & models.Q(by="", label="")),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Returns the name of the report, including its grouping and team."""
        by = f" by {self.get_by_display()}" if self.by else ""
        key = f" “{self.label}”" if self.label else ""
        of = f" of {self.tenant.name}" if self.tenant else ""
        return f"{self.get_report_display()}{by}{key}{of}"


class ReportDelivery(models.Model):
    """Represents a report that was mailed for one period.

    `first` is the first day of the period in the reader's time zone.
    """

    subscription = models.ForeignKey(ReportSubscription, on_delete=models.CASCADE, related_name="deliveries")
    first = models.DateField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(name="one_report_a_period", fields=["subscription", "first"])]

    def __str__(self) -> str:
        return f"{self.subscription} from {self.first}"
