"""The ledger: append-only, double entry, decimal. Triggers in the migrations enforce all three.

A transaction is a set of entries whose amounts sum to zero in each unit. Units are GPU-seconds of
one generation ("GPU-s A100") and money ("EUR").
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.contrib.postgres.fields.ranges import RangeStartsWith
from django.db import models
from django.db.models.functions import Now

from accounting.models.hardware import Generation
from accounting.models.tenants import Tenant, User


class LedgerAccount(models.Model):
    """Where amounts come from and go to; one for each kind, unit, tenant and user."""

    class Kind(models.TextChoices):
        USAGE = "usage", "GPU time used"  # of a tenant's user, in GPU-seconds
        CAPACITY = "capacity", "GPU time provided"  # of the cluster, in GPU-seconds
        COST = "cost", "Cost of GPU time"  # of a tenant's user, in money
        REVENUE = "revenue", "Charged for GPU time"  # of the cluster, in money
        TRADE = "trade", "Entitlement traded"  # of a tenant, in GPU-seconds

    kind = models.CharField(max_length=10, choices=Kind)
    unit = models.CharField(max_length=60)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, null=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True)
    user = models.ForeignKey(User, on_delete=models.PROTECT, null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_ledger_account_each",
                fields=["kind", "unit", "generation", "tenant", "user"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="an_account_has_the_parties_of_its_kind",
                condition=models.Q(kind__in=["usage", "cost"], tenant__isnull=False, user__isnull=False)
                | models.Q(kind__in=["capacity", "revenue"], tenant=None, user=None)
                | models.Q(kind="trade", tenant__isnull=False, user=None),
            ),
            models.CheckConstraint(
                name="an_account_has_the_unit_of_its_kind",
                condition=models.Q(
                    kind__in=["usage", "capacity", "trade"],
                    generation__isnull=False,
                    unit__startswith="GPU-s ",
                )
                | models.Q(kind__in=["cost", "revenue"], generation=None, unit__regex=r"^[A-Z]{3}$"),
            ),
        ]


class LedgerTransaction(models.Model):
    """One economic event. `key` makes booking it twice impossible."""

    class Kind(models.TextChoices):
        USAGE = "usage", "Usage"
        TRADE = "trade", "Trade"
        CORRECTION = "correction", "Correction"

    key = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=10, choices=Kind)
    period = DateTimeRangeField(help_text="When it happened.")
    recorded_at = models.DateTimeField(db_default=Now())
    description = models.TextField()
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True)
    corrects = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="correction")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                name="only_a_correction_corrects",
                condition=models.Q(kind="correction", corrects__isnull=False)
                | (~models.Q(kind="correction") & models.Q(corrects=None)),
            )
        ]

    def __str__(self) -> str:
        return self.key


class LedgerEntry(models.Model):
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=24, decimal_places=6)

    class Meta:
        constraints = [models.CheckConstraint(name="entry_is_not_zero", condition=~models.Q(amount=0))]


class UsageSegmentQuerySet(models.QuerySet["UsageSegment"]):
    def visible_to(self, user: User) -> Self:
        """Segments of tenants that `user` may see."""
        return self.filter(tenant__in=Tenant.objects.visible_to(user))

    def uncorrected(self) -> Self:
        """Without those that a correction has taken back."""
        return self.filter(transaction__correction=None)

    def overlapping(self, begins: datetime | None, ends: datetime | None) -> Self:
        """Segments of which a part lies in [begins, ends); None is no bound."""
        found = self
        if begins is not None:
            # A segment lasts an hour at most: a bound on its start lets the index find it.
            found = found.filter(
                period__startswith__gt=begins - timedelta(hours=1), period__endswith__gt=begins
            )
        if ends is not None:
            found = found.filter(period__startswith__lt=ends)
        return found


class UsageSegment(models.Model):
    """The voucher of a usage transaction: which lease held how many GPUs, when, at what price.

    A segment never crosses a full UTC hour nor a change of price, so that hours and days add up
    exactly. Names are kept as they were.
    """

    transaction = models.OneToOneField(LedgerTransaction, on_delete=models.PROTECT, related_name="segment")
    lease_id = models.BigIntegerField()
    job_id = models.BigIntegerField(db_index=True)
    job_name = models.CharField(max_length=120)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    tenant_name = models.CharField(max_length=80)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    user_name = models.CharField(max_length=150)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    gpus = models.PositiveIntegerField()
    period = DateTimeRangeField()
    gpu_seconds = models.DecimalField(max_digits=24, decimal_places=6)
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    cost = models.DecimalField(max_digits=24, decimal_places=6)
    currency = models.CharField(max_length=3)

    objects = UsageSegmentQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index("tenant", RangeStartsWith("period"), name="usage_of_tenant_by_start"),
            models.Index(RangeStartsWith("period"), name="usage_by_start"),
        ]
        constraints = [
            ExclusionConstraint(
                name="a_lease_is_billed_once_for_any_moment",
                expressions=[("lease_id", RangeOperators.EQUAL), ("period", RangeOperators.OVERLAPS)],
            ),
        ]
