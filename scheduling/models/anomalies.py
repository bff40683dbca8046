"""Models of sharing analyses: which jobs waited longer or ended later than on their team's private cluster.

A team's private cluster is the part of the cluster that the team's tickets would buy.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from fairshare.counterfactual.past import Cause as FoundCause
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job


class SharingAnalysisQuerySet(models.QuerySet["SharingAnalysis"]):
    def visible_to(self, user: User) -> Self:
        """Returns the analyses that include a team that `user` may see; all analyses if `user` is an operator."""
        if user.is_operator:
            return self
        parts = SharingPart.objects.visible_to(user).filter(analysis=models.OuterRef("pk"))
        return self.filter(models.Exists(parts))

    def unfinished(self) -> Self:
        return self.filter(finished_at=None)

    def with_progress(self) -> Self:
        """Annotates each analysis with `teams`, its number of teams, and `teams_done`, the number of teams that are
        done."""
        return self.annotate(
            teams=models.Count("parts"),
            teams_done=models.Count("parts", filter=models.Q(parts__done_at__isnull=False)),
        )


class SharingAnalysis(models.Model):
    """An analysis of one period of a cluster: compares each team's jobs with a simulation on the team's private
    cluster.

    The private cluster is the part of the cluster that the team's tickets would buy.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="sharing_analyses")
    begins = models.DateTimeField()
    ends = models.DateTimeField()
    # A job counts as an anomaly only if it is later than both this many seconds and this fraction of its time on the
    # private cluster.
    tolerance_seconds = models.FloatField(default=300)
    tolerance_part = models.FloatField(default=0.1)
    # null: the nightly analysis
    asked_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    asked_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    objects = SharingAnalysisQuerySet.as_manager()

    class Meta:
        ordering = ["-ends", "-id"]
        constraints = [
            models.UniqueConstraint(name="one_analysis_a_period", fields=["cluster", "begins", "ends"]),
            models.CheckConstraint(
                name="an_analysis_has_a_period", condition=models.Q(ends__gt=models.F("begins"))
            ),
            models.CheckConstraint(
                name="tolerances_are_not_negative",
                condition=models.Q(tolerance_seconds__gte=0, tolerance_part__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cluster} from {self.begins:%Y-%m-%d %H:%M} to {self.ends:%Y-%m-%d %H:%M}"


class SharingPartQuerySet(models.QuerySet["SharingPart"]):
    def visible_to(self, user: User) -> Self:
        return self.filter(tenant__in=tenants_visible_to(user))

    def troubled(self) -> Self:
        """Returns the parts that are done but have no result."""
        return self.exclude(done_at=None).exclude(trouble="")


class SharingPart(models.Model):
    """The part of an analysis for one team, with its result. The result and its anomalies are written in one
    transaction."""

    analysis = models.ForeignKey(SharingAnalysis, on_delete=models.CASCADE, related_name="parts")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    done_at = models.DateTimeField(null=True)
    trouble = models.CharField(max_length=300, blank=True, default="")  # why there is no result
    # The GPUs of the team's private cluster, by name of the generation.
    gpus = models.JSONField(default=dict)
    judged = models.PositiveIntegerField(default=0)  # jobs that were compared
    # compared jobs that had not ended, so that only their start was compared
    unfinished = models.PositiveIntegerField(default=0)
    carried = models.PositiveIntegerField(default=0)  # jobs from before the period, not compared
    too_large = models.PositiveIntegerField(default=0)  # jobs that could never run on the private cluster

    objects = SharingPartQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(name="one_part_a_team_and_analysis", fields=["analysis", "tenant"])
        ]

    def __str__(self) -> str:
        return f"{self.tenant} in {self.analysis}"

    @property
    def has_failed(self) -> bool:
        """Returns whether the analysis of this team failed with an error. Returns False if there were just no jobs to
        compare."""
        return bool(self.trouble) and not self.gpus


class SharingAnomalyQuerySet(models.QuerySet["SharingAnomaly"]):
    def visible_to(self, user: User) -> Self:
        """Returns the anomalies of jobs in tenants that `user` may see."""
        return self.filter(part__tenant__in=tenants_visible_to(user))


class SharingAnomaly(models.Model):
    """A job that waited longer, or ended later, than it would have on its team's private cluster."""

    class Cause(models.TextChoices):
        OVER_BORROWING = FoundCause.OVER_BORROWING.value, "Other teams borrowed too much"
        FRAGMENTATION = FoundCause.FRAGMENTATION.value, "Free GPUs were scattered over nodes"
        RESERVATION = FoundCause.RESERVATION.value, "GPUs were kept for another gang"
        PRIORITY = FoundCause.PRIORITY.value, "Other jobs of the team went first"
        FAILURE = FoundCause.FAILURE.value, "Failed starts"
        QUOTA = FoundCause.QUOTA.value, "Limit used up"
        PAUSE = FoundCause.PAUSE.value, "Cluster paused"
        SLOWER_GPUS = FoundCause.SLOWER_GPUS.value, "Ran on slower GPUs"
        SWITCHING = FoundCause.SWITCHING.value, "Stopped and started too often"
        LOST_WORK = FoundCause.LOST_WORK.value, "Work was lost and done again"
        IDLE_LIMIT = FoundCause.IDLE_LIMIT.value, "Job preemptible because of a limit"
        HARDWARE = FoundCause.HARDWARE.value, "Nodes down or drained"
        UNEXPLAINED = FoundCause.UNEXPLAINED.value, "Unexplained"

    part = models.ForeignKey(SharingPart, on_delete=models.CASCADE, related_name="anomalies")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="sharing_anomalies")
    cause = models.CharField(max_length=20, choices=Cause)  # the main cause
    causes = models.JSONField(default=dict)  # seconds by cause
    late_seconds = models.FloatField()
    at_end = models.BooleanField()  # the end was late; False: the start was late
    # Null: the job did not start, or did not end, within the period.
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    private_started_at = models.DateTimeField()
    private_ended_at = models.DateTimeField(null=True)

    objects = SharingAnomalyQuerySet.as_manager()

    class Meta:
        ordering = ["-late_seconds", "id"]
        indexes = [models.Index(fields=["part", "-late_seconds"], name="anomalies_of_part")]
        constraints = [
            models.UniqueConstraint(name="one_anomaly_a_job_and_part", fields=["part", "job"]),
            models.CheckConstraint(name="an_anomaly_is_late", condition=models.Q(late_seconds__gt=0)),
        ]


class AnomalyHolder(models.Model):
    """A job that held GPUs while the anomaly's job waited for them, with the GPU-seconds that it held in that time."""

    anomaly = models.ForeignKey(SharingAnomaly, on_delete=models.CASCADE, related_name="holders")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")
    gpu_seconds = models.FloatField()

    class Meta:
        ordering = ["-gpu_seconds", "id"]
        constraints = [models.UniqueConstraint(name="one_holder_a_job", fields=["anomaly", "job"])]
