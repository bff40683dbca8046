"""Sums of share intervals by the hour, which reports of fairness are made of, and what jobs took to finish."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import Generation, Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job


class ShareBook(models.Model):
    """The full UTC hours of which a cluster's share intervals are summed."""

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="share_book"
    )
    since = models.DateTimeField()
    until = models.DateTimeField(help_text="Hours from here on are not summed yet.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="summed_hours_come_in_order", condition=models.Q(until__gte=models.F("since"))
            )
        ]


class ShareHour(models.Model):
    """What the share intervals of a tenant and generation say of one hour, in GPU-seconds; see ShareInterval."""

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
    """How long a training job took, written when the hour in which it ended was summed."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="finish_time")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    ended_at = models.DateTimeField()
    seconds = models.FloatField(help_text="From submit to end.")
    # Finish-time fairness, see fairshare.fairness, by the weights of that time; empty where it cannot be told.
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
