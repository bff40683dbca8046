"""Models of rounds: their inputs and decisions, and the share that each tenant was entitled to and received."""

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
    """One scheduling decision for a cluster.

    - A quantum round may take GPUs from any job.
    - A fill round, between two quantum rounds, allocates free GPUs. Under some policies, it also takes GPUs that
      accounts hold beyond their guarantee, for waiting jobs of accounts within their guarantee.
    """

    class Kind(models.TextChoices):
        QUANTUM = "quantum", "Quantum"
        FILL = "fill", "Fill"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="rounds")
    number = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    at = models.DateTimeField(db_default=Now())
    ordering = models.CharField(max_length=10)
    # The policy that decided. The defaults apply to rounds from before these columns existed.
    policy = models.CharField(max_length=40, db_default=FIRST)
    policy_version = models.PositiveSmallIntegerField(db_default=1)
    policy_build = models.CharField(
        max_length=12, db_default=""
    )  # empty: the round is older than this column
    policy_options = models.JSONField(
        null=True
    )  # null: the options are in the settings of the round's snapshot
    seed = models.BigIntegerField()
    gpus_up = models.PositiveIntegerField()
    gpus_given = models.PositiveIntegerField()
    jobs_considered = models.PositiveIntegerField()
    started = models.PositiveIntegerField()
    stopped = models.PositiveIntegerField()
    read_ms = models.FloatField()
    decide_ms = models.FloatField()
    # The shares of each tenant until the next round: a list of ShareRate dictionaries, in GPUs, from which the next
    # round computes ShareIntervals.
    shares = models.JSONField(default=list)

    class Meta:
        ordering = ["-number"]
        indexes = [models.Index(fields=["cluster", "at"])]
        constraints = [models.UniqueConstraint(name="one_round_a_number", fields=["cluster", "number"])]


class RoundRecord(models.Model):
    """The complete input and output of a round, compressed. They are enough to reproduce the decision."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, related_name="record")
    snapshot = models.BinaryField()
    # The policy's state when it decided; null: the policy started from the amounts owed in the snapshot.
    state = models.BinaryField(null=True)
    # What the policy observed before it decided: `seconds`, `received` and `corrected` of fairshare's Happened; null:
    # nothing.
    happened = models.BinaryField(null=True)
    decision = models.BinaryField()
    # The ids to which indices refer: nodes, generations, accounts (tenant id, user id or null) and jobs.
    legend = models.JSONField()


class ShadowRound(models.Model):
    """A decision that a shadow policy made from the snapshot of a real round. It is only recorded, never carried
    out."""

    round = models.OneToOneField(Round, on_delete=models.CASCADE, primary_key=True, related_name="shadow")
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    options = models.JSONField()
    decide_ms = models.FloatField()
    shares = models.JSONField()  # as Round.shares
    # Figures of both decisions for the same snapshot, by name; see figures_of in scheduling.rounds.comparison.
    real_figures = models.JSONField()
    own_figures = models.JSONField()
    # As in PolicyState, in the order of the RoundRecord's legend.
    state = models.BinaryField()
    plan = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.policy} {self.version} in comparison with round {self.round_id}"


class PolicyState(models.Model):
    """The state of a cluster's policy after its last round, with the shares of each account in that round.

    A cluster that had no jobs in its last round has no row.
    """

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="policy_state"
    )
    policy = models.CharField(max_length=40)
    version = models.PositiveSmallIntegerField()
    # The ids to which the rows and columns of the arrays refer, as in RoundRecord.legend.
    accounts = models.JSONField()
    generations = models.JSONField()
    state = models.BinaryField()  # the policy's arrays
    plan = models.BinaryField()  # `share` and `guaranteed`, in GPUs

    def __str__(self) -> str:
        return f"{self.policy} {self.version} of cluster {self.cluster_id}"


class ShareBalance(models.Model):
    """The balance of a user in one tenant for one generation.

    - `share`: the number of GPUs that the user should hold from the last round to the next.
    - `owed`: the GPU-seconds that the user should have received according to the shares of all rounds, but did not;
      negative if the user received too much.

    Some policies may repay owed GPU time on any generation. The total is then split among the user's rows in proportion
    to `share`.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="balances")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    user = models.ForeignKey(User, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    owed = models.FloatField(default=0)
    # GPUs that the last round gave this account as its share, in force until the next round.
    share = models.FloatField(default=0)
    # GPU-seconds that earlier rounds counted as received too much (or too little, if negative), as found since the last
    # round. The next round passes them to the policy.
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
    """A tenant's share of one generation between two successive rounds, in GPU-seconds.

    - entitled: what the tenant's tickets earn among the active tenants
    - lent: entitled, but used by other tenants
    - unused: entitled, but used by nobody
    - borrowed: used beyond the entitlement, from what others lent
    - bought: got in trades
    - sold: given in trades
    - received: held, as observed

    In each interval, all tenants together lend as much as they borrow. What the tenant should have received is entitled
    - lent - unused + borrowed + bought - sold; `received` may differ from it.
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
        """Returns the trades in which a tenant that `user` may see was the seller or the buyer."""
        mine = Tenant.objects.visible_to(user)
        return self.filter(models.Q(seller__in=mine) | models.Q(buyer__in=mine))


class Trade(models.Model):
    """A trade: the seller gives time on GPUs of generation `fast`, and gets more time on the buyer's GPUs of generation
    `slow`.

    A trade begins with a round. It continues over later rounds while its terms stay the same, at most to the end of the
    UTC hour.
    """

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="trades")
    seller = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="sales")
    buyer = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="purchases")
    slow = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    fast = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="+")
    fast_gpus = models.FloatField()
    slow_gpus = models.FloatField()
    price = models.FloatField(help_text="`slow_gpus` divided by `fast_gpus`.")
    seller_speedup = models.FloatField()
    buyer_speedup = models.FloatField()
    begins = models.DateTimeField(db_default=Now())
    ends = models.DateTimeField(null=True)  # set by the round that ends the trade and books it in the ledger

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
