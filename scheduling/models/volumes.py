"""Models of volumes: external storage that jobs of certain teams may mount, and the jobs that use it."""

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
        """Returns the volumes that jobs of `user` may mount; all volumes if `user` is an operator."""
        if user.is_operator:
            return self
        teams = Tenant.objects.visible_to(user, role=Membership.Role.MEMBER)
        return self.filter(models.Q(tenant=None) | models.Q(tenant__in=teams))

    def for_jobs_of(self, tenant: Tenant, cluster: Cluster) -> Self:
        return self.filter(models.Q(tenant=None) | models.Q(tenant=tenant), cluster=cluster)


class Volume(models.Model):
    """External storage that jobs of one team, or of all teams, may mount by its name.

    The storage is a PersistentVolumeClaim or, for local clusters, a folder on the portal's machine. Volumes are created
    and withdrawn but never changed. So all attempts of a job mount the same storage; an attempt after the withdrawal
    fails to start.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="volumes")
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, null=True, blank=True, related_name="volumes"
    )
    name = models.CharField(max_length=63)
    # The name of a PersistentVolumeClaim in the namespace of each team that may use it; locally an absolute path.
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
    """Links a job to a volume that its spec names.

    Withdrawing the volume deletes this row; the job's next attempt then fails to start.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="named_volumes")
    name = models.CharField(max_length=63)
    volume = models.ForeignKey(Volume, on_delete=models.CASCADE, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_volume_a_job_and_name", fields=["job", "name"])]

    def __str__(self) -> str:
        return self.name
