"""Enforces limits on the number of waiting jobs of a team or user, even if jobs are submitted concurrently."""

from __future__ import annotations

from datetime import datetime

from accounting.core.errors import Refused
from accounting.limits.quotas import LimitUsage, a_limit_above, visible_lineage
from accounting.models import Quota, Tenant, User
from scheduling.limits.usage import NAMED, usages_of


class QueuePlaces:
    """The free places in the queue for new jobs of `user` in `tenant`. Messages name only limits that `reader` may see.

    Must be used in the transaction that adds the jobs: it locks the limits, so that a concurrent submission under the
    same limits waits until the transaction ends.
    """

    def __init__(self, tenant: Tenant, user: User, reader: User | None, *, now: datetime) -> None:
        quotas = Quota.objects.filter(kind=Quota.Kind.QUEUED_JOBS, at_limit=Quota.AtLimit.BLOCK)
        # Locked in order of their ids, so that two submissions under the same limits never deadlock.
        in_force = quotas.in_force_for(tenant, user.pk).select_related(*NAMED).order_by("pk")
        locked = list(in_force.select_for_update(no_key=True, of=("self",)))
        self._usages = usages_of(locked, tenant, user, now=now)
        self._reader = reader
        self._taken = 0

    def take(self) -> Refused | None:
        """Takes one place in the queue and returns None. If no place is left, returns a Refused error that names the
        limit."""
        for usage in self._usages:
            if usage.is_exceeded(self._taken + 1):
                limit_in_words = _said(usage.with_more(self._taken), self._reader)
                return Refused(
                    f"{limit_in_words}. Submit the job after a waiting job has started.", field="tenant"
                )
        self._taken += 1
        return None


def _said(usage: LimitUsage, reader: User | None) -> str:
    if usage.quota.tenant_id in visible_lineage(usage.tenant, reader):
        return str(usage)
    return f"The number of waiting jobs has reached {a_limit_above(usage.tenant)}"
