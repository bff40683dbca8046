"""Models of forecasts of the times at which waiting jobs start."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

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

    A job has one from its first forecast, and another each time it has waited twice as long. `expected` is when the
    simulations expected the start, `age` how long after the job's first forecast this one was made.
    """

    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="kept_forecasts", db_index=False
    )
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="kept_forecasts")
    is_first = models.BooleanField()
    at = models.DateTimeField()
    age = models.DurationField()
    expected = models.DateTimeField()
    earliest = models.DateTimeField()
    latest = models.DateTimeField()
    # When the job started, or ended without a start; null while it waits.
    started_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["cluster"], condition=Q(closed_at=None), name="forecast_open"),
            models.Index(fields=["closed_at"], name="forecast_closed"),
            models.Index(fields=["cluster", "-at", "-id"], name="forecasts_of_a_cluster"),
        ]
        constraints = [
            models.CheckConstraint(
                name="a_forecast_is_an_interval",
                condition=Q(at__lte=F("earliest")) & Q(earliest__lte=F("latest")),
            ),
            models.CheckConstraint(name="a_start_is_expected_later", condition=Q(at__lte=F("expected"))),
            models.CheckConstraint(
                name="a_start_closes_a_forecast",
                condition=Q(started_at=None) | Q(closed_at__isnull=False),
            ),
        ]
