"""Sessions: somebody works in a program that answers at a port, for a while."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import User
from scheduling.models.jobs import Job


class SessionQuerySet(models.QuerySet["Session"]):
    def visible_to(self, user: User) -> Self:
        """Sessions of tenants that `user` may see."""
        return self.filter(job__in=Job.objects.visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Those that `user` may open, keep and stop: whose job the user may cancel."""
        return self.filter(job__in=Job.objects.changeable_by(user))

    def unfinished(self) -> Self:
        return self.exclude(job__state__in=Job.ENDED)


class Session(models.Model):
    """What a job of kind session is besides. Its owner, its tenant and its life are the job's."""

    job = models.OneToOneField(Job, on_delete=models.PROTECT, primary_key=True, related_name="session")
    idle_minutes = models.PositiveIntegerField(help_text="Unused for so long while it runs, it is stopped.")
    longest_hours = models.PositiveIntegerField(help_text="So long after its first start it is stopped.")
    used_at = models.DateTimeField(null=True)  # when somebody last did something in it, or kept it
    warned_at = models.DateTimeField(null=True)  # that it is idle; void when it was used since
    end_warned_at = models.DateTimeField(null=True)  # that its longest duration ends

    objects = SessionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="a_session_has_limits",
                condition=models.Q(idle_minutes__gte=1, longest_hours__gte=1),
            )
        ]

    def __str__(self) -> str:
        return self.job.name
