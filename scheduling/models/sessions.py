"""Model of notebook sessions: programs that listen on a port and in which a user works."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Value
from django.db.models.functions import Greatest, Least

from accounting.models import User
from scheduling.models.jobs import Job
from scheduling.models.leases import Lease


class SessionQuerySet(models.QuerySet["Session"]):
    def visible_to(self, user: User) -> Self:
        """Returns the sessions of tenants that `user` may see."""
        return self.filter(job__in=Job.objects.visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the sessions that `user` may stop and keep (restart their idle timeout).

        These are the sessions whose jobs `user` may cancel. Who may open one: `enterable`
        (scheduling/models/entering.py).
        """
        return self.filter(job__in=Job.objects.changeable_by(user))

    def unfinished(self) -> Self:
        return self.exclude(job__state__in=Job.ENDED)

    def idle_times(self, now: datetime) -> dict[int, tuple[timedelta, timedelta]]:
        """Returns two durations for each session, by job id:

        - How long the session ran from its last use to `now`.
        - How long it ran from its idle warning or its last use, whichever was later, to `now`.

        Both count only time in which the session ran, over all attempts.
        """
        # Nobody can use a session that waits, starts, stops or is lost, so that time does not count.
        ended = Least("stop_asked_at", "held_until", "missing_since", Value(now, models.DateTimeField()))

        def ran_since(*moments: str) -> models.Sum:
            ran = ended - Greatest("running_from", *moments)
            none = Value(timedelta(0), models.DurationField())
            return models.Sum(Greatest(ran, none, output_field=models.DurationField()))

        used, warned = "job__session__used_at", "job__session__warned_at"
        leases = Lease.objects.filter(job__in=self.values("pk"), running_from__isnull=False).order_by()
        rows = leases.values_list("job").annotate(
            unused=ran_since(used), unused_warned=ran_since(used, warned)
        )
        return {job: (idle, after_warning) for job, idle, after_warning in rows}


class Session(models.Model):
    """The extra fields of a job of kind session. The job itself has the owner, the tenant and the state."""

    class Kind(models.TextChoices):
        NOTEBOOK = "notebook", "Notebook"  # serves below FAIRLOT_BASE_URL
        # VS Code in the browser. It serves at the root, so the proxy removes FAIRLOT_BASE_URL from the paths.
        VSCODE = "vscode", "VS Code"

    job = models.OneToOneField(Job, on_delete=models.PROTECT, primary_key=True, related_name="session")
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.NOTEBOOK, db_default=Kind.NOTEBOOK)
    idle_minutes = models.PositiveIntegerField(
        help_text="The running session is stopped when nobody has used it for this many minutes."
    )
    longest_hours = models.PositiveIntegerField(
        help_text="The session is stopped this many hours after its first start."
    )
    # The job of the earlier session whose files this one copies before its program starts.
    files_from = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="+")
    used_at = models.DateTimeField(null=True)  # when a user last used or kept it
    # when its owner was last warned that it is idle; void if it was used since
    warned_at = models.DateTimeField(null=True)
    end_warned_at = models.DateTimeField(null=True)  # when its owner was warned of its time limit

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
