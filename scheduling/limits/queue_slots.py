"""Enforces the limits on new jobs of a team or user, even if jobs are submitted concurrently.

They limit how many jobs may wait, and how much space the files of jobs may take.
"""

from __future__ import annotations

from datetime import datetime

from accounting.core.errors import Refused
from accounting.core.wording import data_size
from accounting.limits.quotas import LimitUsage, a_limit_above, visible_lineage
from accounting.models import Quota, Tenant, User
from scheduling.limits.usage import NAMED, usages_of
from scheduling.models import Job, JobStorage

BIGGEST = 3  # jobs that a refusal names


class QueuePlaces:
    """The free places in the queue for new jobs of `user` in `tenant`. Messages name only limits that `reader` may see.

    There are none while the files of jobs take all the space of a limit, if the new jobs are to leave files on this
    machine (`leaves_files`).

    Must be used in the transaction that adds the jobs: it locks the limits, so that a concurrent submission under the
    same limits waits until the transaction ends.
    """

    def __init__(
        self, tenant: Tenant, user: User, reader: User | None, *, now: datetime, leaves_files: bool
    ) -> None:
        kinds = Quota.AT_SUBMIT if leaves_files else (Quota.Kind.QUEUED_JOBS,)
        quotas = Quota.objects.filter(kind__in=kinds, at_limit=Quota.AtLimit.BLOCK)
        # Locked in order of their ids, so that two submissions under the same limits never deadlock.
        in_force = quotas.in_force_for(tenant, user.pk).select_related(*NAMED).order_by("pk")
        locked = list(in_force.select_for_update(no_key=True, of=("self",)))
        self._usages = usages_of(locked, tenant, user, now=now)
        self._reader = reader
        self._tenant, self._user = tenant, user
        self._taken = 0

    def take(self) -> Refused | None:
        """Takes one place in the queue and returns None. If no place is left, returns a Refused error that names the
        limit and what helps."""
        for usage in self._usages:
            if usage.quota.kind == Quota.Kind.STORAGE:
                if usage.is_reached:
                    return Refused(f"{self._said(usage)}. {self._what_to_clean()}", field="tenant")
            elif usage.is_exceeded(self._taken + 1):
                said = self._said(usage.with_more(self._taken))
                ask = ""
                if usage.quota.by_managers:
                    ask = f", or ask a manager of {usage.quota.tenant.name} for a higher limit"
                return Refused(
                    f"{said}. Submit the job after a waiting job has started{ask}.", field="tenant"
                )
        self._taken += 1
        return None

    def _said(self, usage: LimitUsage) -> str:
        if usage.quota.tenant_id in visible_lineage(usage.tenant, self._reader):
            return str(usage)
        what = (
            "The space for files of jobs"
            if usage.quota.kind == Quota.Kind.STORAGE
            else "The number of waiting jobs"
        )
        return f"{what} has reached {a_limit_above(usage.tenant)}"

    def _what_to_clean(self) -> str:
        rows = JobStorage.objects.present().filter(
            job__owner=self._user, job__tenant=self._tenant, job__state__in=Job.ENDED, deletion_wanted_at=None
        )
        found = list(rows.filter(size__gt=0).select_related("job").order_by("-size", "pk")[:BIGGEST])
        if not found:
            return (
                "You have no files of ended jobs in this team. Ask its members to delete theirs on the page Storage,"
                " or its managers for more space."
            )
        named = ", ".join(f"{row.job.name} #{row.pk} ({data_size(row.size)})" for row in found)
        return f"Delete files of ended jobs on the page Storage; your biggest are {named}."
