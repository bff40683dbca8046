"""Reads a team's limits and their current usage, for pages."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Q

from accounting.core.clock import now_from_database
from accounting.limits.quotas import is_reached
from accounting.models import Membership, Quota, Tenant
from portal.forms.fields import plain
from portal.forms.limit import EACH
from scheduling.limits.usage import used_by_account


@dataclass(frozen=True)
class ShownLimit:
    """A limit with its current usage. `used` is None if the usage was not read.

    `of_former_member`: whether the limit is on one user who no longer has a role in the team or below it. It counts
    again if the user returns.

    For a limit that applies to each user separately, `used` is the usage of the user who uses most.
    """

    quota: Quota
    used: Decimal | None
    of_former_member: bool = False

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
    users = {quota.user_id for quota in quotas if quota.user_id}
    members: set[int] = set()
    if users:
        here = Q(tenant__path__startswith=tenant.path) | Q(tenant__in=tenant.lineage)
        members.update(Membership.objects.filter(here, user__in=users).values_list("user_id", flat=True))
    return [
        ShownLimit(
            quota,
            max(used.values(), default=Decimal(0)),
            of_former_member=quota.user_id is not None and quota.user_id not in members,
        )
        for quota, used in used_by_account(quotas, now=now_from_database())
    ]
