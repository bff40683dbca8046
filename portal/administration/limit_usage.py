"""Reads a team's limits and their current usage, for pages."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from accounting.core.clock import now_from_database
from accounting.limits.quotas import is_reached
from accounting.models import Quota, Tenant
from portal.forms.fields import plain
from portal.forms.limit import EACH
from scheduling.limits.usage import used_by_account


@dataclass(frozen=True)
class ShownLimit:
    """A limit with its current usage. `used` is None if the usage was not read.

    For a limit that applies to each user separately, `used` is the usage of the user who uses most.
    """

    quota: Quota
    used: Decimal | None

    @property
    def is_reached(self) -> bool:
        return self.used is not None and is_reached(self.quota, self.used)

    @property
    def amount(self) -> str:
        """Returns the limit as it is typed into the form."""
        return plain(self.quota.limit)

    @property
    def fields(self) -> dict[str, object]:
        """Returns what the form of a limit posts to name this limit, without the amount."""
        quota = self.quota
        return {
            "kind": quota.kind,
            "user": EACH if quota.each_user else quota.user_id or "",
            "generation": quota.generation_id or "",
            "period": quota.period,
            "days": quota.days or "",
            "at_limit": quota.at_limit,
        }


def limits_of(tenant: Tenant) -> list[ShownLimit]:
    """Returns the limits that are set on this tenant itself, without the limits of the tenants above it."""
    quotas = list(tenant.quotas.select_related("tenant", "generation", "user"))
    return [
        ShownLimit(quota, max(used.values(), default=Decimal(0)))
        for quota, used in used_by_account(quotas, now=now_from_database())
    ]
