"""Models of schedules, and of the outcome of each of their due times."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.event_codes import Delay, RunNote, accepted
from scheduling.models.jobs import Job
from scheduling.models.ownership import changeable
from scheduling.timetable import Timetable
from scheduling.timetable.missed_runs import ALL, ONCE, SKIP

LATE = timedelta(minutes=1)  # after its due time, from which a run was made up


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def visible_to(self, user: User) -> Self:
        """Returns the schedules of tenants that `user` may see. Includes deleted schedules, because past jobs refer to
        them."""
        return self.filter(tenant__in=tenants_visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the schedules that `user` may change, by the rule of `changeable` (scheduling/models/ownership.py).

        Leaves out deleted schedules.
        """
        return self.kept().filter(changeable(user))

    def kept(self) -> Self:
        return self.filter(deleted_at=None)

    def due(self, now: datetime) -> Self:
        """Returns the schedules with a due time at or before `now` that is not handled yet.

        Leaves out schedules that are paused, deleted, or on a detached cluster.
        """
        return self.kept().filter(paused_at=None, next_due_at__lte=now, cluster__detached_at=None)


class Schedule(models.Model):
    """A job spec that Fairlot submits in the name of the schedule's owner at each due time of a timetable."""

    class Missed(models.TextChoices):
        SKIP = SKIP, "Skip missed runs"
        ONCE = ONCE, "Run once for all missed runs"
        ALL = ALL, "Run each missed run"

    class Overlap(models.TextChoices):
        ALLOW = "allow", "Start the new run while the earlier one continues"
        FORBID = "forbid", "Skip the new run"
        REPLACE = "replace", "Cancel the earlier run and start the new one"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="schedules")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="schedules")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="schedules")
    name = models.CharField(max_length=120)
    spec = models.JSONField(help_text="The canonical JobSpec, as scheduling/spec/job_spec.py writes it.")
    expression = models.CharField(
        max_length=120, help_text="A cron expression, or a repeating interval R[n]/start/period."
    )
    time_zone = models.CharField(max_length=64)
    begins = models.DateTimeField(null=True, blank=True)
    ends = models.DateTimeField(null=True, blank=True)
    missed = models.CharField(max_length=4, choices=Missed, default=Missed.ONCE)
    catch_up_seconds = models.PositiveIntegerField(default=86_400)
    overlap = models.CharField(max_length=7, choices=Overlap, default=Overlap.FORBID)

    # The earliest due time that is not recorded yet; None: no due times are left.
    next_due_at = models.DateTimeField(null=True)
    # Why runs may be late: a Delay, or "" if the schedule was neither paused nor on a detached cluster.
    late_because = models.CharField(max_length=200, blank=True, default="")
    refusals = models.PositiveIntegerField(
        default=0, help_text="Number of consecutive runs that were refused."
    )
    paused_at = models.DateTimeField(null=True)
    paused_reason = models.CharField(max_length=500, blank=True, default="")
    deleted_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    # The client's idempotency key; NULL rather than "" because it must be unique if given.
    request_key = models.CharField(max_length=80, null=True)  # noqa: DJ001

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["next_due_at"],
                condition=models.Q(paused_at=None, deleted_at=None),
                name="schedule_due",
            ),
            models.Index(fields=["tenant", "-id"], name="schedule_of_a_tenant"),
        ]
        constraints = [
            models.UniqueConstraint(name="one_schedule_a_request_key", fields=["owner", "request_key"]),
            models.CheckConstraint(
                name="delays_of_schedules", condition=models.Q(late_because__in=accepted(Delay))
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def timetable(self) -> Timetable:
        return Timetable.stored(self.expression, self.time_zone, self.begins, self.ends)

    @property
    def delay(self) -> str:
        """Returns why runs of the schedule are late or missed, as a value of Delay."""
        return self.late_because or Delay.NOT_RUNNING

    @property
    def window(self) -> timedelta:
        return timedelta(seconds=self.catch_up_seconds)

    def jobs_at_work(self) -> models.QuerySet[Job]:
        """Returns the schedule's jobs that have not ended, oldest first."""
        return Job.objects.filter(scheduled_as__schedule=self).unfinished().order_by("id")


class ScheduleRun(models.Model):
    """The record of a run of a schedule: submitted, skipped or refused. One row may stand for several missed runs.

    - `due_from`, `due_at`: the first and the last due time that the row stands for.
    - `asked_by`: the user who started the run by hand, outside the timetable; None for runs of the timetable.
    - `note`: a RunNote with its parameters in `detail`, or "". scheduling/core/run_texts.py makes a sentence of both.
    - `text`: the error for which the run was refused, or a text from an earlier release.
    """

    class Outcome(models.TextChoices):
        SUBMITTED = "submitted", "Submitted"
        SKIPPED = "skipped", "Skipped"
        REFUSED = "refused", "Refused"

    schedule = models.ForeignKey(Schedule, on_delete=models.PROTECT, related_name="runs")
    due_at = models.DateTimeField()
    due_from = models.DateTimeField()
    asked_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    outcome = models.CharField(max_length=9, choices=Outcome)
    job = models.OneToOneField(Job, on_delete=models.PROTECT, null=True, related_name="scheduled_as")
    note = models.CharField(max_length=20, blank=True, default="", db_default="")
    detail = models.JSONField(default=dict, db_default={})
    text = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                name="one_run_a_due_time", fields=["schedule", "due_at"], condition=models.Q(asked_by=None)
            ),
            models.CheckConstraint(
                name="a_submitted_run_has_its_job",
                condition=models.Q(outcome="submitted", job__isnull=False)
                | (~models.Q(outcome="submitted") & models.Q(job=None)),
            ),
            models.CheckConstraint(name="notes_of_runs", condition=models.Q(note__in=accepted(RunNote))),
            models.CheckConstraint(
                name="a_run_covers_some_time", condition=models.Q(due_from__lte=models.F("due_at"))
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule} at {self.due_at:%Y-%m-%d %H:%M}"

    @property
    def was_made_up(self) -> bool:
        """Returns whether the run was submitted late, because the schedule was paused or the portal was not there."""
        is_due = self.asked_by_id is None and self.outcome == self.Outcome.SUBMITTED
        return is_due and self.at - self.due_at >= LATE
