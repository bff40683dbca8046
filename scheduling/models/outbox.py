"""Model of the outbox: orders to a cluster, stored in the transaction that decided them."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from scheduling.models.clusters import Cluster
from scheduling.models.leases import Lease


class Operation(models.Model):
    """An order to a backend for one lease. Executing an order late or twice does no harm.

    It is fenced by the lease's epoch: a late order for an old attempt has no effect on a newer attempt.
    """

    class Verb(models.TextChoices):
        START = "start", "Start"
        THAW = "thaw", "Continue frozen processes"
        STOP = "stop", "Stop within the grace period"
        FREEZE = "freeze", "Freeze"
        KILL = "kill", "Kill immediately"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="operations")
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="operations")
    verb = models.CharField(max_length=8, choices=Verb)
    created_at = models.DateTimeField(db_default=Now())
    not_before = models.DateTimeField(db_default=Now())
    attempts = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["cluster", "not_before"], condition=models.Q(done_at=None), name="operation_due"
            )
        ]
        constraints = [
            models.UniqueConstraint(name="one_operation_a_lease_and_verb", fields=["lease", "verb"])
        ]
