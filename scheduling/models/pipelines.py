"""Models of pipelines: jobs that need the ends, and perhaps the files, of other jobs."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.ownership import changeable
from scheduling.models.sessions import Session


class PipelineQuerySet(models.QuerySet["Pipeline"]):
    def visible_to(self, user: User) -> Self:
        """Returns the pipelines of tenants that `user` may see."""
        return self.filter(tenant__in=tenants_visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the pipelines that `user` may change, by the rule of `changeable`
        (scheduling/models/ownership.py)."""
        return self.filter(changeable(user))

    def unfinished(self) -> Self:
        """Returns the pipelines of which a step has not ended. These are the pipelines that need the controller's
        steps."""
        return self.filter(ended_at=None)


class Pipeline(models.Model):
    """A set of steps, each of which becomes a job once the steps and jobs that it needs have ended as it wants.

    Fairlot submits the jobs in the name of the pipeline's owner. scheduling/pipelines/controller.py decides when.
    """

    class State(models.TextChoices):
        RUNNING = "running", "Running"  # a step waits, is at work, or was not looked at since it ended
        SUCCEEDED = "succeeded", "Succeeded"  # no step failed; steps may have been skipped
        FAILED = "failed", "Failed"  # a step failed, or its job was cancelled
        CANCELLED = "cancelled", "Cancelled"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="pipelines")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="pipelines")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="pipelines")
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=9, choices=State, default=State.RUNNING)
    cancelled_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    trouble = models.TextField(blank=True, default="")  # why a step cannot be submitted, in words for people
    # What the steps' rows say, so that lists of pipelines do not count them: steps by state.
    counts = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)  # when the last step ended
    # The client's idempotency key; NULL rather than "" because it must be unique if given.
    request_key = models.CharField(max_length=80, null=True)  # noqa: DJ001

    objects = PipelineQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-id"], name="pipeline_of_a_tenant"),
            models.Index(fields=["id"], condition=models.Q(ended_at=None), name="pipeline_not_ended"),
        ]
        constraints = [
            models.UniqueConstraint(name="one_pipeline_a_request_key", fields=["owner", "request_key"]),
            models.CheckConstraint(
                name="an_ended_pipeline_says_how",
                condition=models.Q(state="running", ended_at=None)
                | models.Q(state="cancelled")
                | models.Q(state__in=["succeeded", "failed"], ended_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class PipelineStep(models.Model):
    """One step of a pipeline: its job specification, and what became of its latest job."""

    class State(models.TextChoices):
        PENDING = "pending", "Not submitted"  # waits for what it needs
        ACTIVE = "active", "Submitted"  # its job waits or runs, or has ended and is not looked at yet
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"
        SKIPPED = "skipped", "Skipped"  # never submitted: what it needs can no longer happen

    UNFINISHED = (State.PENDING, State.ACTIVE)

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="steps", db_index=False)
    index = models.PositiveIntegerField()  # the order in which the steps were written
    name = models.CharField(max_length=40)
    spec = models.JSONField(help_text="The canonical JobSpec.")
    state = models.CharField(max_length=9, choices=State, default=State.PENDING, db_default=State.PENDING)
    reason = models.TextField(
        blank=True, default="", db_default=""
    )  # why it was skipped, in words for people
    attempts = models.PositiveIntegerField(default=0, db_default=0)  # number of jobs submitted for it
    job = models.OneToOneField(Job, on_delete=models.PROTECT, null=True, related_name="step")

    class Meta:
        ordering = ["index"]
        constraints = [
            models.UniqueConstraint(name="one_step_an_index", fields=["pipeline", "index"]),
            models.UniqueConstraint(name="one_step_a_name", fields=["pipeline", "name"]),
            models.CheckConstraint(
                name="a_submitted_step_has_a_job",
                condition=models.Q(state__in=["pending", "skipped"], job=None)
                | models.Q(state__in=["active", "succeeded", "failed", "cancelled"], job__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class StepNeed(models.Model):
    """What a step needs: the end of another step of its pipeline, or of a job of its team."""

    class When(models.TextChoices):
        SUCCESS = "success", "it succeeds"
        FAILURE = "failure", "it fails"
        ALWAYS = "always", "it ends in any way"

    step = models.ForeignKey(PipelineStep, on_delete=models.CASCADE, related_name="needs")
    on = models.ForeignKey(PipelineStep, on_delete=models.CASCADE, null=True, related_name="needed_by")
    # The job whose end is needed. For a step, the job that it had when the step that needs it was submitted.
    job = models.ForeignKey(Job, on_delete=models.PROTECT, null=True, related_name="needed_by")
    when = models.CharField(max_length=7, choices=When, default=When.SUCCESS)
    files = models.BooleanField(default=True)  # whether the step's job may read the files of the needed one

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(name="one_need_of_a_step", fields=["step", "on"]),
            models.UniqueConstraint(
                name="one_need_of_a_job", fields=["step", "job"], condition=models.Q(on=None)
            ),
            models.CheckConstraint(
                name="a_need_is_of_something",
                condition=models.Q(on__isnull=False) | models.Q(job__isnull=False),
            ),
        ]

    @property
    def label(self) -> str:
        """Returns the name of the needed step, or `job 12`."""
        return self.on.name if self.on else f"job {self.job_id}"


def files_are_needed() -> models.Q:
    """Returns a query condition for the jobs whose files an unfinished pipeline or session may still read."""
    needs = StepNeed.objects.filter(job=models.OuterRef("pk"), step__pipeline__ended_at=None)
    sessions = Session.objects.unfinished().filter(files_from=models.OuterRef("pk"))
    return (
        models.Q(pipeline__isnull=False, pipeline__ended_at=None)
        | models.Q(models.Exists(needs))
        | models.Q(models.Exists(sessions))
    )
