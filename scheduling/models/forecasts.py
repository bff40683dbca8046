"""When waiting jobs are expected to start, as the last rounds saw it."""

from __future__ import annotations

from django.db import models

from scheduling.models.jobs import Job


class JobForecast(models.Model):
    """Of a job that waits: when it starts at the latest if nothing else happens."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="forecast")
    at = models.DateTimeField()  # of the round after which the cluster stood so
    # Null: not before `looked_until`, which is as far as rounds were played ahead.
    starts_by = models.DateTimeField(null=True)
    looked_until = models.DateTimeField()
