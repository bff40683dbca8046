"""Terminals into running jobs."""

from __future__ import annotations

import uuid
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from accounting.access.permissions import may
from accounting.models import Membership, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.jobs import Job
from scheduling.models.secrets import JobSecret


class TerminalQuerySet(models.QuerySet["Terminal"]):
    def visible_to(self, user: User) -> Self:
        """Returns the terminals in jobs of tenants that `user` may see."""
        return self.filter(job__in=Job.objects.visible_to(user))

    def open(self) -> Self:
        return self.filter(closed_at=None)


class Terminal(models.Model):
    """A shell of a user beside a worker of a running job. The audit trail says when it was opened and closed."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)  # its name for the backend, too
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="terminals")
    worker = models.PositiveIntegerField()  # the rank
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    origin = models.CharField(max_length=64)  # the address from which it was opened
    opened_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())  # when its user was last known to have it open
    closed_at = models.DateTimeField(null=True)

    objects = TerminalQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["job"], condition=models.Q(closed_at=None), name="open_terminals_of_a_job"),
            models.Index(fields=["user", "opened_at"], name="terminals_a_user_opened"),
        ]

    def __str__(self) -> str:
        return f"a terminal in job {self.job_id}"


def enterable(user: User) -> models.Q:
    """Returns a query condition for the jobs in which `user` may open a terminal.

    Owners may who are still members of the team, and managers of the team, unless the job uses secrets that belong to
    its owner. Operators and admins may in all other jobs if FAIRLOT_TERMINALS_FOR_OPERATORS is set.
    """
    member = tenants_visible_to(user, role=Membership.Role.MEMBER)
    managed = tenants_visible_to(user, role=Membership.Role.MANAGER)
    by_role = models.Q(tenant__in=managed)
    if settings.FAIRLOT_TERMINALS_FOR_OPERATORS and may(user, "job.change_any"):
        by_role = models.Q()
    # What a program of the job can read, a shell beside it can read too.
    owners = JobSecret.objects.filter(job=models.OuterRef("pk"), secret__owner__isnull=False)
    by_role &= models.Q(~models.Exists(owners))
    return models.Q(owner=user, tenant__in=member) | by_role
