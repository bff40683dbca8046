"""Terminals into running jobs."""

from __future__ import annotations

import uuid
from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import User
from scheduling.models.jobs import Job


class TerminalQuerySet(models.QuerySet["Terminal"]):
    def visible_to(self, user: User) -> Self:
        """Returns the terminals in jobs of tenants that `user` may see."""
        return self.filter(job__in=Job.objects.visible_to(user))

    def open(self) -> Self:
        return self.filter(closed_at=None)

    def changeable_by(self, user: User) -> Self:
        """Returns the terminals that `user` may end: the user's own, and those in jobs that the user may cancel."""
        return self.filter(models.Q(user=user) | models.Q(job__in=Job.objects.changeable_by(user)))


class Terminal(models.Model):
    """A shell of a user beside a worker of a running job. The audit trail says when it was opened and closed."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)  # its name for the backend, too
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="terminals")
    worker = models.PositiveIntegerField()  # the rank
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    origin = models.CharField(max_length=64)  # the address from which it was opened
    opened_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())  # when its user was last known to have it open
    # When its user left it, so that the shell waits; null while somebody has it open.
    left_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    objects = TerminalQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["job"], condition=models.Q(closed_at=None), name="open_terminals_of_a_job"),
            models.Index(fields=["user", "opened_at"], name="terminals_a_user_opened"),
        ]

    def __str__(self) -> str:
        return f"a terminal in job {self.job_id}"
