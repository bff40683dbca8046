"""Model of forecasts of the times at which waiting jobs start."""

from __future__ import annotations

from django.db import models

from scheduling.models.jobs import Job


class JobForecast(models.Model):
    """A forecast for a waiting job: it starts at `starts_by` or earlier, unless new jobs or other changes intervene.

    `starts_by` None means that the job does not start before `looked_until`, the end of the simulation.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="forecast")
    at = models.DateTimeField()  # the last round before the simulation
    # Null: the job does not start before `looked_until`, the end of the simulated rounds.
    starts_by = models.DateTimeField(null=True)
    looked_until = models.DateTimeField()
