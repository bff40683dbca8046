"""The requests to services over time, as the portal relayed them."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from scheduling.models.services import Service


class TrafficStream(models.Model):
    """Says how far the traffic of a service is rolled up. Who writes samples of the service locks this row."""

    service = models.OneToOneField(
        Service, on_delete=models.CASCADE, primary_key=True, related_name="traffic_stream"
    )
    oldest_at = models.DateTimeField(db_default=Now())  # of all samples
    newest_at = models.DateTimeField(db_default=Now())
    # Samples before this time are rolled up, so that a sample that arrives later cannot be added any more.
    rolled_until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"traffic of service {self.service_id}"


class TrafficSample(models.Model):
    """The requests to a service in one window of time.

    In level 0 each web process writes its own sample of a window, which has all that the process has counted in it. So
    a sample that is written twice counts once. In higher levels the samples of all processes are one, and windows are
    longer (scheduling/metrics/rolling.py).
    """

    stream = models.ForeignKey(
        TrafficStream, on_delete=models.CASCADE, related_name="samples", db_index=False
    )
    level = models.PositiveSmallIntegerField(default=0)
    number = models.BigIntegerField(help_text="Identifies the window among those of its level.")
    source = models.CharField(max_length=32, help_text="Identifies the web process; empty in higher levels.")
    at = models.DateTimeField(help_text="When the window begins.")
    requests = models.PositiveBigIntegerField()
    sums = models.JSONField(help_text="As scheduling.services.traffic.Traffic stores it.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_traffic_sample_a_window", fields=["stream", "level", "number", "source"]
            )
        ]

    def __str__(self) -> str:
        return f"traffic sample {self.number} of level {self.level}"
