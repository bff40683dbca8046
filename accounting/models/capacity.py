"""The closed hours of the clusters' ledgers: all GPU time by class (such as busy, idle or free), its value, and the
rollups for reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self

from django.contrib.postgres.fields import DateTimeRangeField
from django.db import models
from django.db.models.functions import Now

from accounting.models.hardware import Generation
from accounting.models.ledger import LedgerTransaction
from accounting.models.tenants import Tenant, User


def _amount(**more: Any) -> models.DecimalField[Any, Any]:
    return models.DecimalField(max_digits=24, decimal_places=6, **more)


class ByHourQuerySet(models.QuerySet["models.Model"]):
    def between(self, begins: datetime | None, ends: datetime | None) -> Self:
        """Returns the rows of the hours that begin in [begins, ends). A bound of None means no bound."""
        found = self
        if begins is not None:
            found = found.filter(month__gte=begins.astimezone(UTC).date().replace(day=1), hour__gte=begins)
        if ends is not None:
            found = found.filter(month__lte=ends.astimezone(UTC).date(), hour__lt=ends)
        return found


class ClosedBook(models.Model):
    """Represents the closed part of a cluster's book (ledger): all full hours from `since` until `until`.

    - `priced_until`: class prices (prices for idle, preemptible or borrowed time) no longer change the bills of hours
      before this time.
    - `details_since`: hours before this time are archived, so that the database has only their rollups; None if nothing
      is archived.
    """

    book = models.BigIntegerField(primary_key=True, help_text="ID of the cluster whose GPUs are booked.")
    since = models.DateTimeField()
    until = models.DateTimeField()
    priced_until = models.DateTimeField()
    details_since = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="only_closed_hours_are_priced",
                condition=models.Q(priced_until__gte=models.F("since"), priced_until__lte=models.F("until")),
            ),
            models.CheckConstraint(
                name="a_book_is_closed_forwards", condition=models.Q(until__gte=models.F("since"))
            ),
        ]

    def __str__(self) -> str:
        return f"the hours of book {self.book} are closed until {self.until}"


class CapacitySegment(models.Model):
    """Represents the GPU time of one generation in one closed hour at one price, by class.

    It is a voucher (detailed row) of the transaction that closes the hour. The GPU-seconds of all classes sum to
    `capacity`. The class `others` is time in which processes outside Fairlot used the GPUs.

    `value`: capacity times price, rounded once. It is the sum of:

    - `charged`: the cost of the tenants' usage
    - `free_value`, `others_value`, `drained_value`, `down_value`: the values of time that no lease held
    - `rounding`: the difference that results because each cost is rounded separately
    """

    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="capacity", db_constraint=False
    )
    book = models.BigIntegerField()
    month = models.DateField()
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    period = DateTimeRangeField()
    busy = _amount()
    idle = _amount()
    assembling = _amount()
    free = _amount()
    others = _amount()
    drained = _amount()
    down = _amount()
    capacity = _amount()
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    currency = models.CharField(max_length=3)
    charged = _amount()
    free_value = _amount()
    others_value = _amount()
    drained_value = _amount()
    down_value = _amount()
    rounding = _amount()
    value = _amount()

    def __str__(self) -> str:
        return f"{self.capacity} GPU-s of generation {self.generation_id} from {self.period.lower}"


class NodeHour(models.Model):
    """Represents the GPU time of one node and generation in one closed hour, in GPU-seconds by class.

    For each generation and class, the sum over all nodes of the cluster equals the sum over the hour's rows of
    `CapacitySegment`, which count all nodes together.
    """

    book = models.BigIntegerField()
    month = models.DateField()
    hour = models.DateTimeField()
    node_id = models.BigIntegerField()
    node_name = models.CharField(max_length=253)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    busy = _amount()
    idle = _amount()
    assembling = _amount()
    free = _amount()
    others = _amount()
    drained = _amount()
    down = _amount()

    objects = ByHourQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.node_name} in the hour from {self.hour}"


class UsageSum(models.Model):
    """Represents a rollup of closed time: the sum of the usage segments (billed intervals of leases) of one user in a
    tenant, for one generation.

    A correction of closed time adds another row with the difference, so the sum of all rows is the valid value.
    `gpu_seconds` includes `idle` and `assembling`. `assembling` is the time before all workers of a gang run.
    """

    transaction_id = models.BigIntegerField(
        help_text="ID of the ledger transaction that last changed this row: the closing of an hour, or a correction."
    )
    book = models.BigIntegerField()
    month = models.DateField()
    hour = models.DateTimeField(help_text="Start of the hour.")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    gpu_seconds = _amount()
    assembling = _amount()
    idle = _amount()
    cost = _amount()
    currency = models.CharField(max_length=3)
    segments = models.IntegerField(
        help_text=(
            "Number of usage segments (billed intervals of leases) in this row; negative in the row of a correction."
        )
    )

    objects = ByHourQuerySet.as_manager()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.gpu_seconds} GPU-s in the hour from {self.hour}"


class UsageHour(UsageSum):
    """Represents the rollup of one user's usage in a tenant, for one generation, in one hour."""


class UsageDay(UsageSum):
    """Represents the rollup of one user's usage in a tenant, for one generation, on one day (UTC). It is the sum of the
    day's hours."""


class ArchiveRecord(models.Model):
    """Records that the detailed usage rows (vouchers) of a month were archived in files, or restored from files.

    If a month has several records, the last one is valid. The table is append-only, and the hash chain covers it. If
    the vouchers of a month are missing, this table proves whether they were archived or deleted.
    """

    month = models.DateField()
    is_archived = models.BooleanField(
        help_text=(
            "True: the vouchers (detailed usage rows) were moved to files."
            " False: they were moved back to the database."
        )
    )
    rows = models.PositiveBigIntegerField()
    digests = models.JSONField(
        default=dict, help_text="SHA-256 digest of each archive file, keyed by file name."
    )
    seals = models.JSONField(
        default=dict,
        help_text="Number of the latest seal that covers this archived month in each book, keyed by the book's number.",
    )
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["month", "-id"], name="archive_records_of_a_month")]
        constraints = [
            models.CheckConstraint(name="archived_month_begins", condition=models.Q(month__day=1)),
            models.CheckConstraint(
                name="only_an_archived_month_has_files",
                condition=models.Q(is_archived=True) | models.Q(digests={}, seals={}),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {'archived' if self.is_archived else 'brought back'} at {self.at}"


class ArchivedHour(models.Model):
    """Represents the sum of the bills of one archived hour, by tenant, generation, price and correction.

    - `cost`: the cost at the plain price.
    - `charged`: the amount that class prices (prices for idle, preemptible or borrowed time) added; negative if they
      reduced the cost.
    - `brought`: the part of `charged` that was copied from the bill of a former payer. For example, class prices added
      3 euros to the bill of team A, and then a correction moved the usage to team B. In the row of team B, `brought` is
      3 euros.
    """

    book = models.BigIntegerField()
    month = models.DateField()
    hour = models.DateTimeField(help_text="Start of the hour.")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    currency = models.CharField(max_length=3)
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    correction_id = models.BigIntegerField(
        null=True, help_text="ID of the correction that took this usage back; null if none did."
    )
    anew_by_id = models.BigIntegerField(
        null=True,
        help_text="ID of the correction after which this usage was booked again; null if it was not.",
    )
    gpu_seconds = _amount()
    cost = _amount()
    charged = _amount()
    brought = _amount()
    # GPU-seconds in classes with a price; 0 in months that an earlier release archived.
    idle = _amount(default=0)
    preemptible = _amount(default=0)
    borrowed = _amount(default=0)

    objects = ByHourQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "hour"], name="archived_hours_of_tenant"),
            models.Index(fields=["month", "hour"], name="archived_hours_of_month"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_seconds} GPU-s of team {self.tenant_id} in the hour from {self.hour}"


class JobDay(UsageSum):
    """Represents the rollup of one job's usage, for one generation, on one day (UTC)."""

    job_id = models.BigIntegerField()
    job_name = models.CharField(max_length=120)
