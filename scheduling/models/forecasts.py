"""Models of forecasts of the times at which waiting jobs start."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from fairshare.starts.calibration import FIRST_MARGIN
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job


class JobForecast(models.Model):
    """The present forecast for a waiting job: it probably starts between `earliest` and `starts_by`.

    `starts_by` None means that a latest start is not known.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="forecast")
    at = models.DateTimeField()  # the last round before the simulation
    earliest = models.DateTimeField()
    starts_by = models.DateTimeField(null=True)


class KeptForecast(models.Model):
    """A forecast of a job's first start that is kept, to be compared with what came.

    A job has one from its first forecast, and another each time it has waited twice as long. The outcome of each side
    of the interval is known at different times: `below_known` once the interval has begun or the job has started,
    `above_known` once the interval is over or the job has started.
    """

    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="kept_forecasts", db_index=False
    )
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="kept_forecasts")
    is_first = models.BooleanField()
    at = models.DateTimeField()
    earliest = models.DateTimeField()
    latest = models.DateTimeField()
    below_known = models.BooleanField(default=False, db_default=False)
    above_known = models.BooleanField(default=False, db_default=False)
    # When the job started, or ended without a start; null while it waits.
    started_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["cluster"], condition=Q(closed_at=None), name="forecast_open"),
            models.Index(fields=["closed_at"], name="forecast_closed"),
        ]
        constraints = [
            models.CheckConstraint(
                name="a_forecast_is_an_interval",
                condition=Q(at__lte=F("earliest")) & Q(earliest__lte=F("latest")),
            ),
            models.CheckConstraint(
                name="a_start_closes_a_forecast",
                condition=Q(started_at=None) | Q(closed_at__isnull=False),
            ),
        ]


class StartMargins(models.Model):
    """How far intervals of a cluster reach to both sides of the expected start, as learned from earlier forecasts.

    The fields are those of fairshare.starts.calibration.Margins. First forecasts of jobs have their own margins.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="start_margins")
    is_first = models.BooleanField()
    below = models.FloatField(default=FIRST_MARGIN)
    above = models.FloatField(default=FIRST_MARGIN)
    below_known = models.PositiveIntegerField(default=0)
    above_known = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_margin_a_cluster_and_kind", fields=["cluster", "is_first"])
        ]
