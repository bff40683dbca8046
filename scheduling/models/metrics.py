"""The metrics of jobs over time: what their GPUs and processes did, and the numbers that their programs report."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from scheduling.models.jobs import Job


class MetricStreamQuerySet(models.QuerySet["MetricStream"]):
    def visible_to(self, user: User) -> Self:
        """Returns the streams of jobs that `user` may see, by the rule of `JobQuerySet.visible_to`."""
        return self if sees_every_tenant(user) else self.filter(job__tenant__in=ids_with_role(user))


class MetricStream(models.Model):
    """The metrics that a job has from one source, and how far the source has been read.

    Samples have the position of a metric in `names` instead of its name, because names are long and samples are many.
    """

    class Source(models.TextChoices):
        MACHINE = "machine", "Measured by the cluster"
        OUTPUT = "output", "Printed by the program"
        EVENTS = "events", "Written as TensorBoard events"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="metric_streams", db_index=False)
    source = models.CharField(max_length=7, choices=Source)
    names = models.JSONField(default=list)
    oldest_at = models.DateTimeField(null=True)  # of all samples
    newest_at = models.DateTimeField(null=True)
    # Samples before this time are rolled up, so that a sample that arrives later cannot be added any more.
    rolled_until = models.DateTimeField(null=True)
    position = models.JSONField(default=dict, help_text="How far the source has been read.")
    # What was not stored, and how often: see scheduling/metrics/recording.py.
    left_out = models.JSONField(default=dict)
    # By which steps the points are, and which are kept: see scheduling/metrics/by_step.py.
    by_step = models.JSONField(default=dict)
    read_at = models.DateTimeField(null=True)
    is_complete = models.BooleanField(default=False, help_text="The source will have nothing more.")

    objects = MetricStreamQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(name="one_stream_of_each_source", fields=["job", "source"])]

    def __str__(self) -> str:
        return f"{self.source} of job {self.job_id}"


class MetricSample(models.Model):
    """The values of a stream's metrics in one window of time.

    A window of level 0 has WINDOW seconds, and windows of higher levels are longer (scheduling/metrics/rolling.py).
    Each value is stored in one level only.
    """

    stream = models.ForeignKey(MetricStream, on_delete=models.CASCADE, related_name="samples", db_index=False)
    level = models.PositiveSmallIntegerField(default=0)
    number = models.BigIntegerField(help_text="Identifies the window among those of its level.")
    at = models.DateTimeField(help_text="When the window begins.")
    # By the position of the metric's name: the value, or [count, sum, lowest, highest, last] of several values.
    values = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_sample_a_window", fields=["stream", "level", "number"])
        ]

    def __str__(self) -> str:
        return f"sample {self.number} of level {self.level}"


class MetricPoint(models.Model):
    """The value of one of a stream's metrics at one step of the program, as it was reported last.

    The points of a metric are few (scheduling/metrics/thinning.py).
    """

    stream = models.ForeignKey(MetricStream, on_delete=models.CASCADE, related_name="points", db_index=False)
    metric = models.PositiveSmallIntegerField(help_text="Position of the metric's name.")
    step = models.FloatField()
    value = models.FloatField()
    at = models.FloatField(help_text="When it was reported, in seconds since 1970.")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_point_a_step", fields=["stream", "metric", "step"])]

    def __str__(self) -> str:
        return f"metric {self.metric} at step {self.step}"
