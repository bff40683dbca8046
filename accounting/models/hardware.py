"""Models of GPU generations and their prices."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models

from accounting.core.name_order import by_name


class Generation(models.Model):
    """Represents a GPU model family, such as V100 or A100."""

    name = models.CharField(max_length=40, unique=True)
    description = models.CharField(max_length=200, blank=True)
    memory_gib = models.PositiveIntegerField(default=0)
    # How much a GPU-hour of this generation counts when reports compare tenants. Everybody may see the weight, and it
    # applies to all time.
    weight = models.DecimalField(max_digits=9, decimal_places=4, default=Decimal(1), db_default=Decimal(1))

    class Meta:
        ordering = by_name("name")
        constraints = [models.CheckConstraint(name="weight_is_positive", condition=models.Q(weight__gt=0))]

    def __str__(self) -> str:
        return self.name


def _of_class(text: str) -> models.DecimalField[Any, Any]:
    return models.DecimalField(max_digits=12, decimal_places=6, null=True, blank=True, help_text=text)


def present_currency() -> str:
    """Returns the currency that new prices get: the setting FAIRLOT_CURRENCY."""
    currency: str = settings.FAIRLOT_CURRENCY
    return currency


class Price(models.Model):
    """Represents the price of a GPU-hour of a generation in the interval `valid`.

    The intervals of a generation's prices never overlap.

    - `per_gpu_hour`: the plain price, at which usage is billed first.
    - `idle`, `preemptible`, `borrowed`: the prices of these classes of time; None if the plain price applies. The
      difference is posted after the hour is closed.
    - `currency`: the currency of all these prices. It was Fairlot's currency when they were set.
    """

    # Time in several priced classes belongs to the first of them.
    CLASSES = ("idle", "preemptible", "borrowed")

    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="prices")
    per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    currency = models.CharField(max_length=3, default=present_currency)
    idle = _of_class("Price of GPU time that a job held but did not use; null: no separate price.")
    preemptible = _of_class("Price of GPU time that a preemptible job held; null: no separate price.")
    borrowed = _of_class("Price of GPU time beyond the team's entitlement; null: no separate price.")
    valid = DateTimeRangeField(
        help_text=(
            "Start (included) and end (excluded) of the time for which the price is valid; no end until it is"
            " replaced."
        )
    )
    # Both are null for prices of earlier releases. If only `set_by` is null, Fairlot itself set the price.
    set_by = models.ForeignKey("User", on_delete=models.PROTECT, null=True, related_name="+")
    set_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["generation", "valid"]
        constraints = [
            models.CheckConstraint(name="price_is_not_negative", condition=models.Q(per_gpu_hour__gte=0)),
            models.CheckConstraint(
                name="prices_of_classes_are_not_negative",
                condition=(models.Q(idle=None) | models.Q(idle__gte=0))
                & (models.Q(preemptible=None) | models.Q(preemptible__gte=0))
                & (models.Q(borrowed=None) | models.Q(borrowed__gte=0)),
            ),
            models.CheckConstraint(
                name="who_set_a_price_did_so_at_a_moment",
                condition=models.Q(set_by=None) | models.Q(set_at__isnull=False),
            ),
            ExclusionConstraint(
                name="one_price_at_any_moment",
                expressions=[("generation", RangeOperators.EQUAL), ("valid", RangeOperators.OVERLAPS)],
            ),
        ]

    def state(self, now: datetime) -> str:
        """Returns "past", "now" or "planned": when the price is valid, seen at `now`."""
        if self.valid.lower > now:
            return "planned"
        return "now" if self.valid.upper is None or self.valid.upper > now else "past"

    def of_class(self, name: str) -> Decimal:
        """Returns the price of a GPU-hour in the class `name`, one of CLASSES; the plain price if the class has no
        price."""
        price: Decimal | None = getattr(self, name)
        return self.per_gpu_hour if price is None else price
