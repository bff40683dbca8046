"""How much disk space the files of each job take."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from scheduling.models.jobs import Job


class JobStorageQuerySet(models.QuerySet["JobStorage"]):
    def visible_to(self, user: User) -> Self:
        """Returns the rows of jobs that `user` may see, by the rule of `JobQuerySet.visible_to`."""
        return self if sees_every_tenant(user) else self.filter(job__tenant__in=ids_with_role(user))

    def present(self) -> Self:
        """Returns the rows of jobs whose files have not been deleted."""
        return self.filter(job__files_removed_at=None)


class JobStorage(models.Model):
    """The last measurement of a job's files, and whether somebody wants them deleted.

    A job has no row before its first measurement, and none after its files have been deleted.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="storage")
    size = models.BigIntegerField(default=0, help_text="Bytes on the disk, logs included.")
    files = models.BigIntegerField(default=0)
    # Bytes of each folder in the job's folder, by name.
    parts = models.JSONField(default=dict)
    is_complete = models.BooleanField(default=True)  # False: there was more than a measurement looks at
    measured_at = models.DateTimeField(null=True)
    deletion_wanted_at = models.DateTimeField(null=True)

    objects = JobStorageQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["deletion_wanted_at"],
                condition=models.Q(deletion_wanted_at__isnull=False),
                name="job_files_unwanted",
            )
        ]
        constraints = [
            models.CheckConstraint(
                name="files_take_no_negative_space", condition=models.Q(size__gte=0, files__gte=0)
            )
        ]

    def __str__(self) -> str:
        return f"the files of job {self.job_id}"
