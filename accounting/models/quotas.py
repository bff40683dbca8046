"""Limits on the usage of a tenant with its subtree, or of users."""

from __future__ import annotations

from typing import Any, Self

from django.conf import settings
from django.db import models

from accounting.core.name_order import by_name
from accounting.models.hardware import Generation
from accounting.models.tenants import Tenant, User


class QuotaQuerySet(models.QuerySet["Quota"]):
    def in_force_for(self, tenant: Tenant, user_id: int | None) -> Self:
        """Returns the limits on `tenant` and on all tenants above it, sorted from the root down.

        With `user_id`, also returns the limits on this user in these tenants.
        """
        lineage = tenant.lineage
        whose = models.Q(user=None, each_user=False)
        if user_id is not None:
            whose |= models.Q(user=user_id) | models.Q(each_user=True)
        return self.filter(whose, tenant__in=lineage).order_by(
            "tenant__path", *by_name("generation__name"), "pk"
        )


class Quota(models.Model):
    """Represents a limit on a tenant's subtree, or on users in the subtree.

    A limit applies to one generation, or to all generations together. If several limits apply, the tightest one
    decides. A limit on users counts in each team of the subtree separately. So a user of two teams may use the full
    amount in each of them.

    Managers set limits on users of their teams. These stand beside the limits of admins, even with the same key.
    """

    class Kind(models.TextChoices):
        GPUS = "gpus", "GPUs at once"
        GPU_HOURS = "gpu_hours", "GPU-hours"
        MONEY = "money", "Money"
        QUEUED_JOBS = "queued_jobs", "Queued jobs"
        LONGEST_RUN = "longest_run", "Longest run in hours"
        STORAGE = "storage", "Files of jobs in GiB"
        BORROWED = "borrowed", "Borrowed GPUs, as a fraction of the entitlement"

    class Period(models.TextChoices):
        MONTH = "month", "per calendar month (UTC)"
        QUARTER = "quarter", "per calendar quarter (UTC)"
        ROLLING = "rolling", "in the last N days"

    class AtLimit(models.TextChoices):
        BLOCK = "block", "block"
        IDLE = "idle", "make preemptible"
        WARN = "warn", "warn"

    OF_A_PERIOD = (Kind.GPU_HOURS, Kind.MONEY)
    COUNTED = (Kind.GPUS, Kind.QUEUED_JOBS)  # whole numbers
    WITHOUT_GENERATION = (Kind.QUEUED_JOBS, Kind.LONGEST_RUN, Kind.STORAGE)
    AT_SUBMIT = (
        Kind.QUEUED_JOBS,
        Kind.STORAGE,
    )  # blocking, they refuse new jobs and hold back none that waits
    # Kinds whose usage is known before a job runs, so that jobs beyond the limit can run as preemptible jobs. Limits of
    # the other kinds only block or warn.
    MAY_RUN_IDLE = (Kind.GPUS, Kind.GPU_HOURS, Kind.MONEY)
    KEY = ("kind", "user_id", "each_user", "generation_id", "period", "days", "at_limit")

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas")
    user = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="quotas")
    each_user = models.BooleanField(
        default=False,
        db_default=False,
        help_text="True: the limit applies to each user of the team separately.",
    )
    generation = models.ForeignKey(
        Generation,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        help_text="Generation whose GPUs the limit counts; empty: GPUs of all generations.",
    )
    kind = models.CharField(max_length=20, choices=Kind)
    period = models.CharField(max_length=10, choices=Period, blank=True, default="", db_default="")
    days = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Number of days in a rolling period."
    )
    at_limit = models.CharField(
        max_length=10, choices=AtLimit, default=AtLimit.BLOCK, db_default=AtLimit.BLOCK
    )
    limit = models.DecimalField(max_digits=14, decimal_places=3)
    by_managers = models.BooleanField(
        default=False,
        db_default=False,
        help_text="True: managers of the tenant set the limit and may change it; else only admins may.",
    )

    objects = QuotaQuerySet.as_manager()

    class Meta:
        ordering = ["tenant", "kind", "generation", "user", "pk"]
        constraints = [
            models.UniqueConstraint(
                name="one_quota_of_each_kind",
                fields=[
                    "tenant",
                    "user",
                    "each_user",
                    "kind",
                    "generation",
                    "period",
                    "days",
                    "at_limit",
                    "by_managers",
                ],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="managers_limit_users_only",
                condition=models.Q(by_managers=False)
                | models.Q(each_user=True)
                | models.Q(user__isnull=False),
            ),
            models.CheckConstraint(name="quota_is_not_negative", condition=models.Q(limit__gte=0)),
            models.CheckConstraint(
                name="a_quota_of_each_user_names_none",
                condition=models.Q(each_user=False) | models.Q(user=None),
            ),
            models.CheckConstraint(
                name="what_is_used_up_has_a_period",
                condition=models.Q(kind__in=["gpu_hours", "money"]) ^ models.Q(period=""),
            ),
            models.CheckConstraint(
                name="a_rolling_period_has_days",
                condition=models.Q(period="rolling", days__isnull=False, days__gte=1, days__lte=366)
                | (~models.Q(period="rolling") & models.Q(days=None)),
            ),
            models.CheckConstraint(
                name="a_quota_without_generation",
                condition=~models.Q(kind__in=["queued_jobs", "longest_run", "storage"])
                | models.Q(generation=None),
            ),
            models.CheckConstraint(
                name="idle_gpus_are_for_some_kinds",
                condition=~models.Q(at_limit="idle") | models.Q(kind__in=["gpus", "gpu_hours", "money"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.whose()}: {self.what()}"

    @property
    def is_of_users(self) -> bool:
        """Returns whether the limit applies to one user or to each user separately; False for limits on a whole
        subtree.
        """
        return self.each_user or self.user_id is not None

    def whose(self) -> str:
        if self.each_user:
            return f"Each user of {self.tenant.name}"
        return f"{self.user.get_username()} in {self.tenant.name}" if self.user else self.tenant.name

    def what(self) -> str:
        """Returns the limited unit and the period, such as "GPU-hours of A100 per calendar month (UTC)"."""
        return f"{self.unit()}{f' {self.when()}' if self.period else ''}"

    def unit(self) -> str:
        """Returns the unit of the limit, such as "GPU-hours of A100"."""
        name = settings.FAIRLOT_CURRENCY if self.kind == self.Kind.MONEY else self.get_kind_display()
        return f"{name} of {self.generation.name}" if self.generation else str(name)

    def when(self) -> str:
        if self.period == self.Period.ROLLING:
            return f"in the last {self.days} days"
        return str(self.get_period_display()) if self.period else ""

    def key(self) -> dict[str, Any]:
        """Returns the fields that identify the limit among all limits of its tenant, with their values."""
        return {name: getattr(self, name) for name in self.KEY}
