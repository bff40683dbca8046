"""The vouchers (detailed rows) of the ledger: the GPUs that leases held, for which user, when, and at what price."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Self

from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.fields.ranges import RangeStartsWith
from django.db import models
from django.db.models.functions import Coalesce

from accounting.models.hardware import Generation
from accounting.models.ledger import LedgerTransaction
from accounting.models.tenants import Tenant, User, tenants_visible_to


class UsageSegmentQuerySet(models.QuerySet["UsageSegment"]):
    def visible_to(self, user: User) -> Self:
        """Returns the segments of the tenants that `user` may see."""
        if user.is_active and user.is_operator:
            return self.all()  # of all tenants, without a condition that is checked for each row
        return self.filter(tenant__in=tenants_visible_to(user))

    def uncorrected(self) -> Self:
        """Returns the segments that no correction has reversed."""
        return self.filter(taken_back=None)

    def with_charges(self) -> Self:
        """Returns the segments with two aliases for use in later expressions: `full_cost` and `booked_cost`.

        A class charge is the difference due to the price for idle, preemptible or borrowed time.

        - `full_cost`: the cost at the plain price, plus the class charge that was posted for the segment, if any.
        - `booked_cost`: the cost that was posted in the segment's own transaction. This is the cost at the plain price.
          If a correction moved the usage from another payer, it also includes the class charge that the former payer
          had.
        """
        same_month = models.Q(class_charge__month=models.F("month"))
        charged = self.alias(charge=models.FilteredRelation("class_charge", condition=same_month))
        nothing, money = models.Value(Decimal(0)), models.DecimalField(max_digits=24, decimal_places=6)
        amount = Coalesce(models.F("charge__amount"), nothing)
        brought = models.Case(
            models.When(charge__transaction=models.F("transaction"), then=amount), default=nothing
        )
        return charged.alias(
            full_cost=models.ExpressionWrapper(models.F("cost") + amount, money),
            booked_cost=models.ExpressionWrapper(models.F("cost") + brought, money),
        )

    def overlapping(self, begins: datetime | None, ends: datetime | None) -> Self:
        """Returns the segments that overlap [begins, ends). A bound of None means no bound."""
        found = self
        if begins is not None:
            # A segment lasts at most an hour, so a bound on its start lets PostgreSQL use the index.
            found = found.filter(
                month__gte=(begins - timedelta(hours=1)).astimezone(UTC).date().replace(day=1),
                period__startswith__gt=begins - timedelta(hours=1),
                period__endswith__gt=begins,
            )
        if ends is not None:
            found = found.filter(month__lte=ends.astimezone(UTC).date(), period__startswith__lt=ends)
        return found


class UsageSegment(models.Model):
    """Represents the GPUs that a lease held in one interval. It is a voucher (detailed row) of a usage transaction.

    Usage is cut into segments at full UTC hours and at price changes. The names of the job, tenant and user are those
    at the time of posting.

    `version`: 0 when first posted, and one more each time the same usage is posted again after a correction.
    Corrections have reversed all versions except at most one.
    """

    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="segments", db_constraint=False
    )
    book = models.BigIntegerField(help_text="ID of the cluster whose GPUs were used.")
    month = models.DateField()
    lease_id = models.BigIntegerField()
    version = models.PositiveIntegerField(default=0)
    job_id = models.BigIntegerField()
    job_name = models.CharField(max_length=120)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    tenant_name = models.CharField(max_length=80)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    user_name = models.CharField(max_length=150)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    gpus = models.PositiveIntegerField()
    period = DateTimeRangeField()
    gpu_seconds = models.DecimalField(max_digits=24, decimal_places=6)
    # Parts of `gpu_seconds`: before all workers ran, and without observed use.
    assembling = models.DecimalField(max_digits=24, decimal_places=6)
    idle = models.DecimalField(max_digits=24, decimal_places=6)
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    cost = models.DecimalField(max_digits=24, decimal_places=6)
    currency = models.CharField(max_length=3)

    objects = UsageSegmentQuerySet.as_manager()

    class Meta:
        # A constraint in the migrations also rejects overlapping segments of the same lease and version.
        indexes = [
            models.Index("tenant", RangeStartsWith("period"), name="usage_of_tenant_by_start"),
            models.Index(RangeStartsWith("period"), name="usage_by_start"),
            models.Index(fields=["job_id"], name="usage_of_job"),
            # For postings after corrections, which are few.
            models.Index(
                RangeStartsWith("period"), condition=models.Q(version__gt=0), name="usage_booked_anew"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpus} GPUs of lease {self.lease_id} from {self.period.lower}"


class CorrectedSegment(models.Model):
    """Represents one usage segment that a correction reverses. It is a voucher (detailed row) of the correction."""

    segment = models.OneToOneField(
        UsageSegment,
        on_delete=models.PROTECT,
        primary_key=True,
        related_name="taken_back",
        db_constraint=False,
    )
    month = models.DateField()
    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="takes_back", db_constraint=False
    )

    def __str__(self) -> str:
        return f"segment {self.segment_id} taken back by transaction {self.transaction_id}"


class ClassCharge(models.Model):
    """Represents a class charge: the amount by which class prices change the cost of a usage segment.

    Class prices are prices for idle, preemptible or borrowed time.

    - `idle`, `preemptible`, `borrowed`: the GPU-seconds of the segment that are billed at the price of this class; 0 if
      the class has no price.
    - `amount`: what is added to the segment's cost; negative if class prices reduce it.
    """

    segment = models.OneToOneField(
        UsageSegment,
        on_delete=models.PROTECT,
        primary_key=True,
        related_name="class_charge",
        db_constraint=False,
    )
    month = models.DateField()
    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="class_charges", db_constraint=False
    )
    idle = models.DecimalField(max_digits=24, decimal_places=6)
    idle_price = models.DecimalField(max_digits=12, decimal_places=6)
    preemptible = models.DecimalField(max_digits=24, decimal_places=6)
    preemptible_price = models.DecimalField(max_digits=12, decimal_places=6)
    borrowed = models.DecimalField(max_digits=24, decimal_places=6)
    borrowed_price = models.DecimalField(max_digits=12, decimal_places=6)
    amount = models.DecimalField(max_digits=24, decimal_places=6)

    def __str__(self) -> str:
        return f"charge of {self.amount} for idle, preemptible or borrowed time in usage segment {self.segment_id}"
