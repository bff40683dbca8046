"""The outbox: orders to a cluster, written in the transaction that decided them."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from scheduling.models.clusters import Cluster
from scheduling.models.leases import Lease


class Operation(models.Model):
    """An order to a backend, fenced by its lease's epoch and idempotent: executing an order late or twice does no
    harm."""

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
