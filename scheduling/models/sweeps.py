"""Models of sweeps: many jobs of one specification that differ in their parameters."""

from __future__ import annotations

from typing import Any, Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.ownership import changeable


class SweepQuerySet(models.QuerySet["Sweep"]):
    def visible_to(self, user: User) -> Self:
        """Returns the sweeps of tenants that `user` may see."""
        return self.filter(tenant__in=tenants_visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the sweeps that `user` may change, by the rule of `changeable` (scheduling/models/ownership.py)."""
        return self.filter(changeable(user))

    def unfinished(self) -> Self:
        """Returns the sweeps of which a member has not ended. These are the sweeps that need the controller's steps."""
        return self.filter(ended_at=None)


class Sweep(models.Model):
    """A set of jobs with one base specification and different parameters.

    Fairlot submits the jobs in the name of the sweep's owner, a few at a time. scheduling/sweeps/controller.py decides
    when.
    """

    class State(models.TextChoices):
        RUNNING = "running", "Running"  # members are submitted as earlier ones start
        FINISHED = "finished", "Finished"  # every member has ended
        STOPPED = "stopped", "Stopped"  # a metric met the stop rule: no more members are submitted
        CANCELLED = "cancelled", "Cancelled"

    class Goal(models.TextChoices):
        MIN = "min", "Lower is better"
        MAX = "max", "Higher is better"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="sweeps")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="sweeps")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=120)
    spec = models.JSONField(help_text="The canonical JobSpec, before parameters are put in.")
    parameters = models.JSONField(
        help_text="The description of the members: scheduling/sweeps/parameters.py."
    )
    names = models.JSONField(default=list)  # of the parameters, in order
    size = models.PositiveIntegerField()  # number of members
    at_once = models.PositiveIntegerField(
        null=True
    )  # most members that wait or run at the same time; None: no limit
    # The metric by which members are compared. A member whose value is `stop_at` or better stops the sweep. From the
    # step `median_after` on, a member that is worse than the median of the others stops early.
    metric = models.CharField(max_length=40, blank=True, default="")
    goal = models.CharField(max_length=3, choices=Goal, default=Goal.MIN)
    stop_at = models.FloatField(null=True)
    median_after = models.PositiveBigIntegerField(null=True)
    stop_cancels = models.BooleanField(
        default=False
    )  # if the stop rule is met, members at work are cancelled

    state = models.CharField(max_length=9, choices=State, default=State.RUNNING)
    looked_at = models.DateTimeField(null=True)  # when the metrics of members at work were looked at
    stopped_by = models.PositiveIntegerField(null=True)  # index of the member that met the stop rule
    cancelled_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    trouble = models.TextField(blank=True, default="")  # why members cannot be submitted, in words for people
    # What the members' rows say, so that lists of sweeps do not count them: members by state, names of metrics.
    counts = models.JSONField(default=dict)
    metric_names = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)  # when the last member ended
    # The client's idempotency key; NULL rather than "" because it must be unique if given.
    request_key = models.CharField(max_length=80, null=True)  # noqa: DJ001

    objects = SweepQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-id"], name="sweep_of_a_tenant"),
            models.Index(fields=["id"], condition=models.Q(ended_at=None), name="sweep_not_ended"),
        ]
        constraints = [
            models.UniqueConstraint(name="one_sweep_a_request_key", fields=["owner", "request_key"]),
            models.CheckConstraint(
                name="a_stop_rule_has_a_metric",
                condition=models.Q(stop_at=None, median_after=None) | ~models.Q(metric=""),
            ),
            models.CheckConstraint(
                name="a_finished_sweep_has_ended",
                condition=~models.Q(state="finished") | models.Q(ended_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def is_reached_by(self, metrics: dict[str, Any]) -> bool:
        """Returns whether a member with these metrics meets the stop rule."""
        value = metrics.get(self.metric)
        if self.stop_at is None or not isinstance(value, int | float):
            return False
        return value <= self.stop_at if self.goal == self.Goal.MIN else value >= self.stop_at


class SweepMember(models.Model):
    """One member of a sweep: its parameters, and what became of its latest job."""

    class State(models.TextChoices):
        PENDING = "pending", "Not submitted"
        ACTIVE = "active", "Submitted"  # its job waits or runs, or has ended and is not looked at yet
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"
        STOPPED = "stopped", "Stopped early"  # it was worse than the median of the others
        SKIPPED = "skipped", "Skipped"  # never submitted, because the sweep was stopped or cancelled

    UNFINISHED = (State.PENDING, State.ACTIVE)

    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="members", db_index=False)
    index = models.PositiveIntegerField()
    parameters = models.JSONField(default=dict)
    state = models.CharField(max_length=9, choices=State, default=State.PENDING, db_default=State.PENDING)
    attempts = models.PositiveIntegerField(
        default=0, db_default=0
    )  # number of jobs that were submitted for it
    job = models.OneToOneField(Job, on_delete=models.PROTECT, null=True, related_name="member")
    metrics = models.JSONField(default=dict, db_default={})  # the last values that its job has printed
    outdone_at = models.FloatField(null=True)  # the step at which it was worse than the median of the others

    class Meta:
        ordering = ["index"]
        indexes = [models.Index(fields=["sweep", "state", "index"], name="member_by_state")]
        constraints = [
            models.UniqueConstraint(name="one_member_an_index", fields=["sweep", "index"]),
            models.CheckConstraint(
                name="a_submitted_member_has_a_job",
                condition=models.Q(state__in=["pending", "skipped"], job=None)
                | models.Q(
                    state__in=["active", "succeeded", "failed", "cancelled", "stopped"], job__isnull=False
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"member {self.index}"
