"""Forecasts of when waiting jobs start, as of the last rounds."""

from __future__ import annotations

from django.db import models

from scheduling.models.jobs import Job


class JobForecast(models.Model):
    """When a waiting job starts at the latest if nothing else happens."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="forecast")
    at = models.DateTimeField()  # of the round that left the cluster in the state that was simulated
    # Null: not before `looked_until`, the end of the simulated rounds.
    starts_by = models.DateTimeField(null=True)
    looked_until = models.DateTimeField()
