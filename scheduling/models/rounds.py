"""Rounds: what was decided, from what, and what each tenant was entitled to and got."""

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

    A quantum round may take GPUs from anybody. A fill round comes between two of these: it gives free GPUs out, and
    takes from surplus what others wait for within their guarantees, where the policy can.
    """

    class Kind(models.TextChoices):
        QUANTUM = "quantum", "Quantum"
        FILL = "fill", "Fill"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="rounds")
    number = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    at = models.DateTimeField(db_default=Now())
    ordering = models.CharField(max_length=10)
    # Who decided. The defaults are those of the rounds before this was stored.
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
    # What each tenant gets until the next round, in GPUs: a list of ShareRate dictionaries, from
    # which the next round makes the ShareIntervals.
    shares = models.JSONField(default=list)

    class Meta:
        ordering = ["-number"]
        indexes = [models.Index(fields=["cluster", "at"])]
        constraints = [models.UniqueConstraint(name="one_round_a_number", fields=["cluster", "number"])]


class RoundRecord(models.Model):
    """A round's whole input and output, compressed, so that anyone can draw it again."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, related_name="record")
    snapshot = models.BinaryField()
    # What the policy remembered when it was asked; null: no more than what accounts of the snapshot are owed.
    state = models.BinaryField(null=True)
    # What it had been told for that: `seconds`, `received` and `corrected` of fairshare's Happened; null: nothing.
    happened = models.BinaryField(null=True)
    decision = models.BinaryField()
    # Meaning of the indices: ids of nodes, generations, accounts (tenant id, user id or null) and jobs.
    legend = models.JSONField()


class ShadowRound(models.Model):
    """What another policy would have decided where a round did; it had no effect."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, primary_key=True, related_name="shadow")
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    options = models.JSONField()
    decide_ms = models.FloatField()
    shares = models.JSONField()  # as Round.shares
    # What each of the two does of the same view: names and numbers of scheduling.rounds.comparison.
    real_figures = models.JSONField()
    own_figures = models.JSONField()
    # As in PolicyState, aligned as the record of the round.
    state = models.BinaryField()
    plan = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.policy} {self.version} beside {self.round_id}"


class PolicyState(models.Model):
    """What the policy of a cluster remembers since its last round, and what that round gave each account.

    There is none where nobody has had a job since.
    """

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="policy_state"
    )
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    # Meaning of the rows and columns of the arrays, as in RoundRecord.legend.
    accounts = models.JSONField()
    generations = models.JSONField()
    state = models.BinaryField()  # the policy's own arrays
    plan = models.BinaryField()  # `share` and `guaranteed`, in GPUs

    def __str__(self) -> str:
        return f"{self.policy} {self.version} of {self.cluster_id}"


class ShareBalance(models.Model):
    """What a user of a tenant is owed (positive) or has had ahead of time (negative), in GPU-seconds.

    Where the policy makes that good on whichever generation, it is divided among them as the user's share is.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="balances")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    owed = models.FloatField(default=0)
    # GPUs that the last round gave this account as its share, until the next round.
    share = models.FloatField(default=0)
    # What rounds counted as received and was not, as is known since the last one; the next tells the policy.
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
    """From one round to the next, per tenant and generation, in GPU-seconds.

    entitled: by tickets among the active tenants. lent and unused: given up for lack of demand, and
    taken by others or by nobody. borrowed: taken from what others gave up; of each round and generation
    as much is lent as is borrowed. bought and sold: by trades. received: held, as observed.
    entitled - lent - unused + borrowed + bought - sold is what the tenant should have received.
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
            # For what overlaps some stretch of time.
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
        """Trades in which a tenant of the user's took part."""
        mine = Tenant.objects.visible_to(user)
        return self.filter(models.Q(seller__in=mine) | models.Q(buyer__in=mine))


class Trade(models.Model):
    """From a round on `seller` gives time on `fast` GPUs for more time on `slow` ones of `buyer`.

    It goes on over later rounds while nothing of it changes, within an hour.
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
