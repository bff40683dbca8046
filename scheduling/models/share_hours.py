"""Models of hourly rollups of share intervals for fairness reports, and of finish times of jobs."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import Generation, Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job


class ShareBook(models.Model):
    """Records for which UTC hours a cluster's share intervals have been summed in ShareHour.

    The first of these hours begins at `since`, and the last one ends at `until`.
    """

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="share_book"
    )
    since = models.DateTimeField()
    until = models.DateTimeField(help_text="Hours from this time on are not summed yet.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="summed_hours_come_in_order", condition=models.Q(until__gte=models.F("since"))
            )
        ]


class ShareHour(models.Model):
    """A tenant's share of one generation in one hour: the sums of its share intervals, in GPU-seconds. See
    ShareInterval."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT)
    hour = models.DateTimeField()
    entitled = models.FloatField()
    received = models.FloatField()
    lent = models.FloatField()
    unused = models.FloatField()
    borrowed = models.FloatField()
    bought = models.FloatField()
    sold = models.FloatField()

    class Meta:
        indexes = [models.Index(fields=["hour"])]
        constraints = [
            models.UniqueConstraint(
                name="one_share_hour_each", fields=["cluster", "tenant", "generation", "hour"]
            )
        ]


class FinishTimeQuerySet(models.QuerySet["FinishTime"]):
    def visible_to(self, user: User) -> Self:
        return self.filter(tenant__in=tenants_visible_to(user))


class FinishTime(models.Model):
    """The time from submission to end of a training job, and its finish-time fairness (`rho`), for fairness reports.

    The row is written when Fairlot sums the share intervals of the hour in which the job ended.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="finish_time")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    ended_at = models.DateTimeField()
    seconds = models.FloatField(help_text="Seconds from the job's submission to its end.")
    # Finish-time fairness (see fairshare.fairness), with the weights at the time of writing; null: unknown.
    rho = models.FloatField(null=True)

    objects = FinishTimeQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["ended_at"])]
        constraints = [
            models.CheckConstraint(
                name="finish_times_are_not_negative",
                condition=models.Q(seconds__gte=0) & (models.Q(rho=None) | models.Q(rho__gt=0)),
            )
        ]
