"""The double-entry ledger: accounts, transactions, entries, and the seals (links of a hash chain) that reveal
tampering.

A transaction is a set of entries whose amounts sum to zero in each unit. Units are GPU-seconds of one generation
("GPU-s A100") and money ("EUR"). Vouchers are the detailed rows behind a transaction.

Transactions, their entries and their vouchers are stored in partitions, one for each month (UTC). A row belongs to the
month in which the time that it reports begins, for example the time of the usage. `accounting/ledger/partitions.py`
creates the partitions.
"""

from __future__ import annotations

from django.contrib.postgres.fields import DateTimeRangeField
from django.db import models
from django.db.models.functions import Now

from accounting.models.hardware import Generation
from accounting.models.tenants import Tenant, User


class LedgerAccount(models.Model):
    """Represents an account of the ledger, identified by its kind, unit, generation, tenant and user."""

    class Kind(models.TextChoices):
        USAGE = "usage", "GPU time used"  # of a tenant's user, in GPU-seconds
        INSTALLED = (
            "installed",
            "GPU time of all installed GPUs",
        )  # posted when an hour is closed, in GPU-seconds
        CAPACITY = "capacity", "GPU time provided"  # balances usage against installed: 0 over closed hours
        COST = "cost", "Cost of GPU time"  # of a tenant's user, in money
        REVENUE = "revenue", "Revenue from GPU time"  # of the cluster, in money
        # Write-offs: amounts, in both units, that corrections took from tenants without billing another payer.
        WAIVED = "waived", "Taken back"
        FREE = "free", "Free"  # not held, in both units, like the next three
        OTHERS = "others", "Used outside Fairlot"
        DRAINED = "drained", "Drained"
        DOWN = "down", "Down"
        # How class prices changed bills, in money.
        CLASSES = "classes", "Price adjustments for idle, preemptible and borrowed time"
        ROUNDING = "rounding", "Rounding"  # the difference between many rounded costs and one, in money
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
                | models.Q(
                    kind__in=[
                        "installed",
                        "capacity",
                        "revenue",
                        "waived",
                        "free",
                        "others",
                        "drained",
                        "down",
                        "classes",
                        "rounding",
                    ],
                    tenant=None,
                    user=None,
                )
                | models.Q(kind="trade", tenant__isnull=False, user=None),
            ),
            models.CheckConstraint(
                name="an_account_has_the_unit_of_its_kind",
                condition=models.Q(
                    kind__in=[
                        "usage",
                        "installed",
                        "capacity",
                        "waived",
                        "trade",
                        "free",
                        "others",
                        "drained",
                        "down",
                    ],
                    generation__isnull=False,
                    unit__startswith="GPU-s ",
                )
                | models.Q(
                    kind__in=[
                        "cost",
                        "revenue",
                        "waived",
                        "free",
                        "others",
                        "drained",
                        "down",
                        "classes",
                        "rounding",
                    ],
                    generation=None,
                    unit__regex=r"^[A-Z]{3}$",
                ),
            ),
        ]


class LedgerTransaction(models.Model):
    """Represents a set of entries that were posted together. The unique `key` ensures that nothing is posted twice."""

    class Kind(models.TextChoices):
        USAGE = "usage", "Usage"  # of any number of leases; its vouchers are usage segments
        TRADE = "trade", "Trade"
        CORRECTION = "correction", "Correction"  # of a trade, or of usage segments
        CLOSING = "closing", "Closing"  # posts an hour's unheld GPU time; its vouchers are capacity segments
        PRICING = (
            "pricing",
            "Price adjustments for idle, preemptible and borrowed time",
        )  # class charges of an hour

    book = models.BigIntegerField(help_text="ID of the cluster whose GPUs the transaction is about.")
    month = models.DateField(help_text="The first day of the month (UTC) in which `period` begins.")
    key = models.CharField(max_length=120)
    kind = models.CharField(max_length=10, choices=Kind)
    period = DateTimeRangeField(help_text="Period to which the transaction belongs.")
    recorded_at = models.DateTimeField(db_default=Now())
    description = models.TextField()
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True)
    # The trade that a correction reverses; for usage, see CorrectedSegment.
    corrects = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, related_name="correction", db_constraint=False
    )

    class Meta:
        ordering = ["id"]
        constraints = [
            # Equal keys have equal periods, so all rows with the same key are in the same partition.
            models.UniqueConstraint(name="a_key_is_booked_once", fields=["key", "month"]),
            models.CheckConstraint(
                name="only_a_correction_corrects",
                condition=models.Q(kind="correction") | models.Q(corrects=None),
            ),
        ]

    def __str__(self) -> str:
        return self.key


class LedgerEntry(models.Model):
    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="entries", db_constraint=False
    )
    month = models.DateField()
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=24, decimal_places=6)

    class Meta:
        constraints = [models.CheckConstraint(name="entry_is_not_zero", condition=~models.Q(amount=0))]


class LedgerSeal(models.Model):
    """Represents a seal: a link of a book's hash chain. It covers the rows with ids from `first_id` to `last_id`.

    - `leaves`: the SHA-256 digests of these rows, in a format of accounting/ledger/hash_chain.py.
    - `digest`: the SHA-256 digest of the previous seal's digest and the leaves.

    There are three kinds of seals:

    - `month` is None: the seal covers new rows.
    - `month` is set: the seal was made when that month was archived. It covers the rows of the month's transactions
      that stay in the database.
    - `month` is set and `of_sums` is true: the seal covers the month's rollups and archive files. If a month was
      archived several times, the rollups must match the last of these seals.
    """

    book = models.BigIntegerField()
    number = models.BigIntegerField(help_text="1, 2, 3, … in each book.")
    first_id = models.BigIntegerField(help_text="ID of the first row that the seal covers.")
    last_id = models.BigIntegerField()
    month = models.DateField(
        null=True,
        help_text=(
            "Archived month: the seal was made when this month was archived."
            " Null: the seal covers new rows of the book."
        ),
    )
    of_sums = models.BooleanField(default=False, db_default=False)
    form = models.PositiveSmallIntegerField(
        default=1, db_default=1, help_text="Version of the format of the hash chain's leaves."
    )
    leaves = models.BinaryField()
    digest = models.BinaryField()
    sealed_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["book", "number"]
        constraints = [
            models.UniqueConstraint(name="one_seal_a_number", fields=["book", "number"]),
            models.UniqueConstraint(
                name="a_transaction_is_sealed_once",
                fields=["book", "month", "first_id"],
                nulls_distinct=False,
                condition=models.Q(of_sums=False),
            ),
            models.CheckConstraint(
                name="a_seal_spans_what_it_seals", condition=models.Q(last_id__gte=models.F("first_id"))
            ),
            models.CheckConstraint(
                name="sums_are_of_a_month", condition=models.Q(of_sums=False) | models.Q(month__isnull=False)
            ),
        ]


class SealedBook(models.Model):
    """Represents the last seal of a book, stored outside the chain.

    It reveals whether somebody deleted the end of the chain. A book is one cluster's ledger.
    """

    book = models.BigIntegerField(primary_key=True)
    number = models.BigIntegerField()
    digest = models.BinaryField()

    def __str__(self) -> str:
        return f"book {self.book} has {self.number} seals"


class LedgerHead(models.Model):
    """Represents a head: a link of the signed chain over all books (clusters' ledgers) and journals.

    A head names a new seal (link of a book's hash chain) and contains the digest of the previous head; see
    accounting/ledger/heads.py. A head with `book` 0 names no seal. It was made because there was nothing to seal, or
    because somebody resumed the sealing and gave a reason.
    """

    number = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField()
    book = models.BigIntegerField()
    seal = models.BigIntegerField()
    seal_digest = models.BinaryField()
    reason = models.CharField(max_length=300, blank=True, default="")
    digest = models.BinaryField()
    signer = models.BinaryField(
        default=b"", help_text="Public key for the signature; empty if the head is not signed."
    )
    signature = models.BinaryField(default=b"")

    class Meta:
        indexes = [models.Index(fields=["book", "-number"], name="heads_of_a_book")]

    def __str__(self) -> str:
        return f"head {self.number}"
