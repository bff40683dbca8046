"""Volumes: external storage that jobs of certain teams may mount, and which job names which."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job


class VolumeQuerySet(models.QuerySet["Volume"]):
    def visible_to(self, user: User) -> Self:
        """Returns all volumes for operators, else those that jobs of `user` may name."""
        if user.is_operator:
            return self
        teams = Tenant.objects.visible_to(user, role=Membership.Role.MEMBER)
        return self.filter(models.Q(tenant=None) | models.Q(tenant__in=teams))

    def for_jobs_of(self, tenant: Tenant, cluster: Cluster) -> Self:
        return self.filter(models.Q(tenant=None) | models.Q(tenant=tenant), cluster=cluster)


class Volume(models.Model):
    """The right of one team, or of all, to use a claim in a cluster, or a folder of this machine, by a name.

    Volumes are created and withdrawn but never changed: all attempts of a job mount what was named at submit, or
    nothing.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="volumes")
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, null=True, blank=True, related_name="volumes"
    )
    name = models.CharField(max_length=63)
    # A PersistentVolumeClaim in the namespace of each team that may use it; locally an absolute folder.
    source = models.CharField(max_length=400)
    read_only = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    objects = VolumeQuerySet.as_manager()

    class Meta:
        ordering = by_name("name")
        constraints = [
            models.UniqueConstraint(
                name="one_volume_a_cluster_team_and_name",
                fields=["cluster", "tenant", "name"],
                nulls_distinct=False,
            )
        ]

    def __str__(self) -> str:
        return self.name


class JobVolume(models.Model):
    """A link from a job to a volume it names. Withdrawing the volume deletes it, and the job's next attempt is
    refused."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="named_volumes")
    name = models.CharField(max_length=63)
    volume = models.ForeignKey(Volume, on_delete=models.CASCADE, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_volume_a_job_and_name", fields=["job", "name"])]

    def __str__(self) -> str:
        return self.name
