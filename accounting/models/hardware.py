"""What is shared: GPU generations and what an hour of each costs."""

from __future__ import annotations

from decimal import Decimal

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models


class Generation(models.Model):
    """A GPU model family, such as V100 or A100."""

    name = models.CharField(max_length=40, unique=True)
    description = models.CharField(max_length=200, blank=True)
    memory_gib = models.PositiveIntegerField(default=0)
    # Published to all, and one for all time: comparing tenants, a GPU-hour of this counts for so many.
    weight = models.DecimalField(max_digits=9, decimal_places=4, default=Decimal(1), db_default=Decimal(1))

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(name="weight_is_positive", condition=models.Q(weight__gt=0))]

    def __str__(self) -> str:
        return self.name


class Price(models.Model):
    """What one GPU-hour of a generation costs while the price is valid; at most one at any moment."""

    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="prices")
    per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    valid = DateTimeRangeField(help_text="From (included) to (excluded); open at the end until replaced.")

    class Meta:
        ordering = ["generation", "valid"]
        constraints = [
            models.CheckConstraint(name="price_is_not_negative", condition=models.Q(per_gpu_hour__gte=0)),
            ExclusionConstraint(
                name="one_price_at_any_moment",
                expressions=[("generation", RangeOperators.EQUAL), ("valid", RangeOperators.OVERLAPS)],
            ),
        ]
