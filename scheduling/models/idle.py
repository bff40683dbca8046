"""Models of the measured use of allocated GPUs, and of rules for jobs that do not use their GPUs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Self

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.contrib.postgres.indexes import GistIndex
from django.db import models

from accounting.models import Tenant, User
from accounting.usage.clipping import Seconds, earliest, latest, moment
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.leases import Lease

LONGEST_MINUTES = 366 * 24 * 60


def _of_stretches(are_apart: str, have_both_ends: str) -> list[models.BaseConstraint]:
    """Returns the database constraints of a model of stretches (periods) of leases. The arguments are their names.

    - `are_apart`: for the constraint that stretches of one lease do not overlap.
    - `have_both_ends`: for the constraint that each stretch has a start and an end.
    """
    return [
        ExclusionConstraint(
            name=are_apart,
            expressions=[("lease", RangeOperators.EQUAL), ("during", RangeOperators.OVERLAPS)],
        ),
        models.CheckConstraint(
            name=have_both_ends,
            condition=models.Q(
                during__isempty=False, during__lower_inf=False, during__upper_inf=False,
                during__lower_inc=True, during__upper_inc=False,
            ),
        ),
    ]  # fmt: skip


class IdleStretch(models.Model):
    """A period in which none of a lease's GPUs was in use, according to measurements.

    The database refuses to change periods in billed time (scheduling/migrations/0030), because bills and closed hours
    contain them.
    """

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="idle_stretches")
    during = DateTimeRangeField()

    class Meta:
        constraints = _of_stretches("idle_stretches_of_a_lease_are_apart", "an_idle_stretch_has_both_ends")

    def __str__(self) -> str:
        return f"{self.during.lower} to {self.during.upper}"


class ProcesslessStretchQuerySet(models.QuerySet["ProcesslessStretch"]):
    def gpu_seconds_by_tenant(
        self, begins: datetime, ends: datetime, tenants: Collection[int] | None
    ) -> dict[int, Decimal]:
        """Returns the GPU-seconds without a process between `begins` and `ends`, by tenant id. Makes one query.

        `tenants` are the ids of the tenants to include; None means all tenants.
        """
        found = self.filter(during__overlap=(begins, ends))
        if tenants is not None:
            found = found.filter(lease__job__tenant__in=tenants)
        start = latest(models.F("during__startswith"), moment(begins))
        end = earliest(models.F("during__endswith"), moment(ends))
        exact = models.DecimalField(max_digits=24, decimal_places=6)
        seconds = models.ExpressionWrapper(models.F("lease__gpus") * Seconds(end, start), output_field=exact)
        rows = found.order_by().values_list("lease__job__tenant_id").annotate(total=models.Sum(seconds))
        return dict(rows)


class ProcesslessStretch(models.Model):
    """A period in which no process used any GPU of a lease. Measured only for GPUs that report their processes."""

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="processless_stretches")
    during = DateTimeRangeField()

    objects = ProcesslessStretchQuerySet.as_manager()

    class Meta:
        indexes = [GistIndex(fields=["during"], name="processless_by_time")]
        constraints = _of_stretches(
            "processless_stretches_of_a_lease_are_apart", "a_processless_stretch_has_both_ends"
        )

    def __str__(self) -> str:
        return f"{self.during.lower} to {self.during.upper}"


class GpuUseQuerySet(models.QuerySet["GpuUse"]):
    def visible_to(self, user: User) -> Self:
        """Returns the rows for jobs of tenants that `user` may see."""
        return self.filter(job__in=Job.objects.visible_to(user))

    def unused(self) -> Self:
        """Returns the rows of unfinished jobs whose GPUs were idle at the last measurement. Includes jobs that have no
        GPUs now and wait."""
        out = (*Job.ENDED, Job.State.CANCELLING)
        return self.filter(idle_since__isnull=False).exclude(job__state__in=out)

    def idle(self) -> Self:
        """Returns the rows of running jobs whose GPUs were idle at the last measurement of the present attempt."""
        return self.unused().filter(job__state=Job.State.RUNNING, lease__state=Lease.State.RUNNING)


class GpuUse(models.Model):
    """The latest measurement of one job's GPU use, with the state of the job's idle warning."""

    class Measure(models.TextChoices):
        GPU = "gpu", "the use of the job's GPUs"
        CPU = "cpu", "the CPU use of the job's processes"  # for GPUs that report no use

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="gpu_use")
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="+")  # the last measured lease
    measured_until = models.DateTimeField()
    measure = models.CharField(max_length=3, choices=Measure)
    percent = models.FloatField(
        help_text="Measured use of the job's GPUs in percent; if they report none, CPU use in percent of one CPU."
    )
    used_at = models.DateTimeField(null=True, help_text="When the job's GPUs were last seen in use.")
    # Since when all measurements found the held GPUs idle; None: the last one found them in use.
    idle_since = models.DateTimeField(null=True)
    idle_for = models.DurationField(
        help_text="How long the job has held idle GPUs since `idle_since`, over all attempts."
    )
    # None: the last measurement found a process, or processes are unknown.
    processless_since = models.DateTimeField(
        null=True, help_text="Time since which no process is on the job's GPUs."
    )
    first_told_at = models.DateTimeField(
        null=True, help_text="When the owner was first warned or first snoozed."
    )
    warned_at = models.DateTimeField(
        null=True,
        help_text="When the last warning was sent. The warning no longer counts if the GPUs were used since then.",
    )
    idle_warned = models.DurationField(
        default=timedelta, help_text="How much of `idle_for` came after the last warning."
    )
    snoozed_until = models.DateTimeField(null=True)
    snooze_reason = models.CharField(max_length=300, blank=True, default="", db_default="")
    snoozed_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")

    objects = GpuUseQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["idle_since"], condition=models.Q(idle_since__isnull=False), name="idle_now")
        ]

    def __str__(self) -> str:
        return self.job.name


class IdleRule(models.Model):
    """A rule for jobs with idle GPUs. It belongs to a tenant with its subtree, to a cluster, or to all teams.

    A job follows the first of these rules that exists: the rule of its tenant or of the nearest ancestor that has one,
    the rule of its cluster, the rule of all teams.
    """

    class Action(models.TextChoices):
        NOTHING = "nothing", "do nothing"
        WARN = "warn", "warn"
        PREEMPTIBLE = "preemptible", "warn, then make the job preemptible"
        STOP = "stop", "warn, then stop the job"

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, null=True, related_name="idle_rule")
    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, null=True, related_name="idle_rule")
    action = models.CharField(max_length=12, choices=Action)
    after_minutes = models.PositiveIntegerField(
        help_text="A warning is sent when a job's GPUs were idle for this many minutes."
    )
    grace_minutes = models.PositiveIntegerField(
        help_text="The action follows when the GPUs were idle for this many minutes since the warning."
    )
    snooze_hours = models.PositiveIntegerField(
        help_text="Hours for which owners may snooze the warning; 0: they may not snooze it."
    )
    services = models.BooleanField(
        help_text="True: also warn about idle replicas of services, which are never stopped."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_idle_rule_of_each", fields=["tenant", "cluster"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="an_idle_rule_is_of_a_tenant_or_a_cluster",
                condition=models.Q(tenant=None) | models.Q(cluster=None),
            ),
            models.CheckConstraint(
                name="an_idle_rule_waits",
                condition=models.Q(
                    after_minutes__range=(1, LONGEST_MINUTES), grace_minutes__range=(1, LONGEST_MINUTES)
                ),
            ),
        ]

    def __str__(self) -> str:
        return self.whose

    @property
    def whose(self) -> str:
        return str(self.tenant or self.cluster or "all teams")


class MetricsSource(models.Model):
    """A Prometheus HTTP API from which Fairlot reads the GPU use of a Kubernetes cluster."""

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="metrics_source"
    )
    url = models.CharField(max_length=500)
    query = models.CharField(max_length=1000)
    asked_at = models.DateTimeField(null=True)
    # the last error; empty: the last request succeeded
    trouble = models.CharField(max_length=300, blank=True, default="", db_default="")

    def __str__(self) -> str:
        return self.url
