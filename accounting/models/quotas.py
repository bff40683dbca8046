"""How much a tenant, with all tenants below it, may take."""

from __future__ import annotations

from django.db import models

from accounting.models.hardware import Generation
from accounting.models.tenants import Tenant


class Quota(models.Model):
    """A hard limit of one tenant's subtree, overall or for one generation."""

    class Kind(models.TextChoices):
        GPUS = "gpus", "GPUs at once"
        GPU_HOURS_MONTH = "gpu_hours_month", "GPU-hours a calendar month (UTC)"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas")
    generation = models.ForeignKey(
        Generation, on_delete=models.PROTECT, null=True, blank=True, help_text="Empty: all generations."
    )
    kind = models.CharField(max_length=20, choices=Kind)
    limit = models.DecimalField(max_digits=14, decimal_places=3)

    class Meta:
        ordering = ["tenant", "kind", "generation"]
        constraints = [
            models.UniqueConstraint(
                name="one_quota_a_tenant_kind_and_generation",
                fields=["tenant", "kind", "generation"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(name="quota_is_not_negative", condition=models.Q(limit__gte=0)),
        ]
