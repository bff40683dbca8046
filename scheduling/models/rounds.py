"""Rounds: the decisions, their inputs, and what each tenant was entitled to and got."""

from __future__ import annotations

from typing import Self

from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.indexes import GistIndex
from django.db import models
from django.db.models.functions import Now

from accounting.models import Generation, Tenant, User
from accounting.models.tenants import tenants_visible_to
from fairshare.policies import FIRST
from scheduling.models.clusters import Cluster


class Round(models.Model):
    """One decision.

    A quantum round may take GPUs from anybody. A fill round, between two of these, allocates free GPUs; if the
    policy supports it, it also takes surplus GPUs for jobs that wait within their guarantees.
    """

    class Kind(models.TextChoices):
        QUANTUM = "quantum", "Quantum"
        FILL = "fill", "Fill"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="rounds")
    number = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    at = models.DateTimeField(db_default=Now())
    ordering = models.CharField(max_length=10)
    # The policy that decided. The defaults are those of the rounds before this was stored.
    policy = models.CharField(max_length=40, db_default=FIRST)
    policy_version = models.PositiveSmallIntegerField(db_default=1)
    policy_build = models.CharField(max_length=12, db_default="")  # empty: not stored then
    policy_options = models.JSONField(null=True)  # null: those among the settings of its snapshot
    seed = models.BigIntegerField()
    gpus_up = models.PositiveIntegerField()
    gpus_given = models.PositiveIntegerField()
    jobs_considered = models.PositiveIntegerField()
    started = models.PositiveIntegerField()
    stopped = models.PositiveIntegerField()
    read_ms = models.FloatField()
    decide_ms = models.FloatField()
    # What each tenant gets until the next round, in GPUs: a list of ShareRate dictionaries, from which the next round
    # makes the ShareIntervals.
    shares = models.JSONField(default=list)

    class Meta:
        ordering = ["-number"]
        indexes = [models.Index(fields=["cluster", "at"])]
        constraints = [models.UniqueConstraint(name="one_round_a_number", fields=["cluster", "number"])]


class RoundRecord(models.Model):
    """A round's complete input and output, compressed, so that anyone can reproduce it."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, related_name="record")
    snapshot = models.BinaryField()
    # The policy's state before the round; null: only what the snapshot says that accounts are owed.
    state = models.BinaryField(null=True)
    # What the policy was told for it: `seconds`, `received` and `corrected` of fairshare's Happened; null: nothing.
    happened = models.BinaryField(null=True)
    decision = models.BinaryField()
    # Meaning of the indices: ids of nodes, generations, accounts (tenant id, user id or null) and jobs.
    legend = models.JSONField()


class ShadowRound(models.Model):
    """The decision of a shadow policy for the view of a round; it had no effect."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, primary_key=True, related_name="shadow")
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    options = models.JSONField()
    decide_ms = models.FloatField()
    shares = models.JSONField()  # as Round.shares
    # Figures of both decisions for the same view; names and numbers of scheduling.rounds.comparison.
    real_figures = models.JSONField()
    own_figures = models.JSONField()
    # As in PolicyState, aligned with the record of the round.
    state = models.BinaryField()
    plan = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.policy} {self.version} beside {self.round_id}"


class PolicyState(models.Model):
    """The state of a cluster's policy after its last round, and what that round gave each account.

    A cluster has none if nobody has had a job since.
    """

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="policy_state"
    )
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    # Meaning of the rows and columns of the arrays, as in RoundRecord.legend.
    accounts = models.JSONField()
    generations = models.JSONField()
    state = models.BinaryField()  # the policy's arrays
    plan = models.BinaryField()  # `share` and `guaranteed`, in GPUs

    def __str__(self) -> str:
        return f"{self.policy} {self.version} of {self.cluster_id}"


class ShareBalance(models.Model):
    """What a user of a tenant is owed (positive) or has received ahead of share (negative), in GPU-seconds.

    If the policy may repay on any generation, the amount is divided among generations like the user's share.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="balances")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    owed = models.FloatField(default=0)
    # GPUs that the last round gave this account as its share, until the next round.
    share = models.FloatField(default=0)
    # What rounds counted as received but was not, as known since the last one; the next round tells the policy.
    corrected = models.FloatField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_balance_each", fields=["cluster", "tenant", "user", "generation"]
            )
        ]


class ShareIntervalQuerySet(models.QuerySet["ShareInterval"]):
    def visible_to(self, user: User) -> Self:
        return self.filter(tenant__in=tenants_visible_to(user))


class ShareInterval(models.Model):
    """Shares from one round to the next, per tenant and generation, in GPU-seconds.

    - entitled: by tickets among the active tenants
    - lent and unused: given up for lack of demand, and used by others or by nobody
    - borrowed: used of what others gave up; in each round and generation as much is lent as is borrowed
    - bought and sold: by trades
    - received: held, as observed

    The tenant should have received entitled - lent - unused + borrowed + bought - sold.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="intervals")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    begins = models.DateTimeField()
    ends = models.DateTimeField()
    entitled = models.FloatField()
    received = models.FloatField()
    lent = models.FloatField()
    unused = models.FloatField(default=0, db_default=0)
    borrowed = models.FloatField()
    bought = models.FloatField()
    sold = models.FloatField()

    objects = ShareIntervalQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "begins"]),
            models.Index(fields=["begins"]),
            # Finds the intervals that overlap a period.
            GistIndex(
                models.Func("begins", "ends", function="tstzrange", output_field=DateTimeRangeField()),
                name="intervals_in_time",
            ),
        ]
        constraints = [
            models.UniqueConstraint(name="one_share_interval_each", fields=["round", "tenant", "generation"])
        ]


class TradeQuerySet(models.QuerySet["Trade"]):
    def visible_to(self, user: User) -> Self:
        """Returns the trades in which a tenant of the user took part."""
        mine = Tenant.objects.visible_to(user)
        return self.filter(models.Q(seller__in=mine) | models.Q(buyer__in=mine))


class Trade(models.Model):
    """From a round on, `seller` gives time on `fast` GPUs for more time on `slow` GPUs of `buyer`.

    It continues over later rounds while its terms stay the same, within an hour.
    """

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="trades")
    seller = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="sales")
    buyer = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="purchases")
    slow = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    fast = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    fast_gpus = models.FloatField()
    slow_gpus = models.FloatField()
    price = models.FloatField(help_text="slow_gpus / fast_gpus")
    seller_speedup = models.FloatField()
    buyer_speedup = models.FloatField()
    begins = models.DateTimeField(db_default=Now())
    ends = models.DateTimeField(null=True)  # set by the round that ends it, which also books it in the ledger

    objects = TradeQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(name="open_trades", fields=["round"], condition=models.Q(ends=None)),
        ]
        constraints = [
            models.CheckConstraint(
                name="both_sides_of_a_trade_gain",
                condition=models.Q(seller_speedup__lt=models.F("price"))
                & models.Q(price__lt=models.F("buyer_speedup")),
            ),
            models.CheckConstraint(
                name="nobody_trades_with_itself", condition=~models.Q(seller=models.F("buyer"))
            ),
        ]
