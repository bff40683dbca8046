"""Model of the limits that tenants set on their trades."""

from __future__ import annotations

from typing import Self

from django.db import models

from accounting.models import Generation, Tenant, User
from accounting.models.tenants import tenants_visible_to


class TradeLimitQuerySet(models.QuerySet["TradeLimit"]):
    def visible_to(self, user: User) -> Self:
        return self.filter(tenant__in=tenants_visible_to(user))


class TradeLimit(models.Model):
    """A tenant's limit on its trades of one generation: whether it trades the generation, and how much it may give
    away.

    If `generation` is null, the limit applies to all generations for which the tenant has no separate limit. Limits
    apply to trades between the tenant's subtree and other tenants, not to trades within the subtree.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="trade_limits")
    generation = models.ForeignKey(Generation, on_delete=models.CASCADE, null=True, blank=True)
    trades = models.BooleanField(
        help_text="False: the team neither gives nor receives this generation in trades."
    )
    most_gpus = models.DecimalField(
        max_digits=9,
        decimal_places=3,
        null=True,
        blank=True,
        help_text="Maximum GPUs that the team gives away in trades at the same time.",
    )
    most_part = models.DecimalField(
        max_digits=5,
        decimal_places=4,
        null=True,
        blank=True,
        help_text="Maximum GPUs that the team gives away in trades, as a fraction of its entitlement.",
    )

    objects = TradeLimitQuerySet.as_manager()

    class Meta:
        ordering = ["tenant", models.F("generation__name").asc(nulls_last=True)]
        constraints = [
            models.UniqueConstraint(
                name="one_trade_limit_a_generation", fields=["tenant", "generation"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="trade_limit_is_not_negative",
                condition=models.Q(most_gpus__isnull=True) | models.Q(most_gpus__gte=0),
            ),
            models.CheckConstraint(
                name="traded_part_is_a_part",
                condition=models.Q(most_part__isnull=True) | models.Q(most_part__range=(0, 1)),
            ),
            models.CheckConstraint(
                name="what_is_not_traded_has_no_limit",
                condition=models.Q(trades=True) | models.Q(most_gpus__isnull=True, most_part__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.generation or 'other generations'}"

    @property
    def terms(self) -> str:
        """Returns a description of the limit in words, for the audit log."""
        if not self.trades:
            return "not traded"
        said = []
        if self.most_gpus is not None:
            said.append(f"at most {self.most_gpus.normalize():f} GPUs given away in trades")
        if self.most_part is not None:
            part = f"{(self.most_part * 100).normalize():f} %"
            said.append(f"at most {part} of the team's entitlement given away in trades")
        return ", ".join(said) or "no limit on trades"
