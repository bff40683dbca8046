"""Finds the limits that block a job or warn about it, and describes them in words for one reader."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property

from accounting.core.clock import now_from_database
from accounting.limits.quotas import LimitUsage, visible_lineage
from accounting.limits.spending import frees_at, left_of
from accounting.models import Quota, User
from accounting.pricing.tariff import prices_at
from scheduling.limits.caps import unbooked
from scheduling.limits.usage import gpus_had, longest_run, shares_of, usages_for
from scheduling.models import Cluster, Job

AT_ONCE = (Quota.Kind.GPUS, *Quota.OF_A_PERIOD)


@dataclass
class Binding:
    """Finds the limits that block or warn about jobs of one cluster. Reads the limits of each user once.

    Descriptions name only limits that `reader` may see. If `reader` is None, they name only limits that all users who
    may see the job may see.
    """

    cluster: Cluster
    reader: User | None = None  # None: everybody who may see the job
    at: datetime | None = None  # time of the usage; None: the present
    _usages: dict[tuple[int, int, str], list[LimitUsage]] = field(default_factory=dict)
    _seen: dict[int, frozenset[int]] = field(default_factory=dict)
    _shares: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def now(self) -> datetime:
        return self.at or now_from_database()

    @cached_property
    def _prices(self) -> Mapping[int, Decimal]:
        return prices_at(self.now)

    def seen(self, job: Job) -> Container[int]:
        """Returns the ids of those tenants whose limits the reader may see, among the job's tenant and its
        ancestors."""
        if job.tenant_id not in self._seen:
            self._seen[job.tenant_id] = visible_lineage(job.tenant, self.reader)
        return self._seen[job.tenant_id]

    def in_words(self, job: Job, found: Collection[LimitUsage]) -> list[str]:
        """Returns a sentence, without its full stop, for each limit in `found`.

        All limits that the reader may not see get one common sentence.
        """
        return list(dict.fromkeys(self._in_words(one, job) for one in found))

    def in_short(self, job: Job, found: Collection[LimitUsage]) -> str:
        """Returns a description of the first limit in `found` in a few words; an empty text if `found` is empty."""
        return next((one.in_short(self.seen(job)) for one in found), "")

    def _in_words(self, one: LimitUsage, job: Job) -> str:
        said = one.in_words(self.seen(job))
        is_short = one.quota.kind in Quota.OF_A_PERIOD and not one.is_reached
        if is_short and one.quota.tenant_id in self.seen(job):
            return f"{said}; what remains of the limit is not enough for one round"
        return said

    def in_the_way(self, job: Job, *kinds: str, at_limit: str = Quota.AtLimit.BLOCK) -> list[LimitUsage]:
        """Returns the limits that prevent a waiting job from starting, because they leave too little room for it.

        - `kinds`: the kinds of limits to consider, for example limits on GPUs or on GPU-hours.
        - `at_limit`: the effect of the limits to consider. By default, these are limits that block jobs.
        """
        return [one for one in self._of(job, at_limit) if one.quota.kind in kinds and self._binds(one, job)]

    def reached(self, job: Job, at_limit: str) -> list[LimitUsage]:
        """Returns the exceeded limits among those that apply to the job's owner in the job's team.

        Limits on GPU-hours or money count as exceeded as soon as they are used up. `at_limit` is the effect of the
        limits to consider, for example to make jobs preemptible.
        """
        return [one for one in self._of(job, at_limit) if one.is_exceeded()]

    def warnings(self, job: Job, *, is_new: bool = False, beside: int = 0) -> list[LimitUsage]:
        """Returns the limits that `job` exceeds and that only warn.

        - `is_new`: True if the job is not stored yet.
        - `beside`: the number of unsaved jobs that the same request submits before `job`. Limits on waiting jobs count
          them.
        """
        found = [
            one.with_more(beside) if one.quota.kind == Quota.Kind.QUEUED_JOBS else one
            for one in self._of(job, Quota.AtLimit.WARN)
        ]
        waits = is_new or job.state in Job.WAITING
        return [one for one in found if self._warns(one, job, waits=waits, is_new=is_new)] + self._overrun(
            job
        )

    def when(self, job: Job, found: Collection[LimitUsage]) -> tuple[str, ...]:
        """Returns sentences about the time at which the limits in `found` will let the job start, without
        duplicates."""
        return tuple(dict.fromkeys(self._when(one, job) for one in found))

    def _of(self, job: Job, at_limit: str) -> list[LimitUsage]:
        key = (job.tenant_id, job.owner_id, at_limit)
        if key not in self._usages:
            quotas = Quota.objects.filter(at_limit=at_limit).exclude(kind=Quota.Kind.LONGEST_RUN)
            self._usages[key] = usages_for(quotas, job.tenant, job.owner, now=self.now)
        wanted = job.generation_ids
        return [one for one in self._usages[key] if not wanted or one.quota.generation_id in {None, *wanted}]

    def _overrun(self, job: Job) -> list[LimitUsage]:
        """Returns the limits on run time that the job has exceeded and that only warn."""
        if job.pk is None or job.state in Job.WAITING:
            return []
        quotas = Quota.objects.filter(kind=Quota.Kind.LONGEST_RUN, at_limit=Quota.AtLimit.WARN)
        found = longest_run(quotas, job, now=self.now)
        return [one for one in found if one.is_reached]

    def _warns(self, one: LimitUsage, job: Job, *, waits: bool, is_new: bool) -> bool:
        if one.quota.kind == Quota.Kind.BORROWED:
            return self._borrows(one, more=job.gpus if waits else 0)
        if one.quota.kind == Quota.Kind.STORAGE:
            is_local = self.cluster.backend == Cluster.Backend.LOCAL  # others keep no files on this machine
            return is_new and one.is_reached and is_local
        if one.quota.kind == Quota.Kind.QUEUED_JOBS:
            return waits and job.kind != Job.Kind.REPLICA and one.is_exceeded(1 if is_new else 0)
        return one.is_exceeded(job.gpus if waits else 0)

    def _binds(self, one: LimitUsage, job: Job) -> bool:
        if one.quota.kind in Quota.OF_A_PERIOD:
            return one.is_reached or not self._lasts(one, job)
        if one.quota.kind == Quota.Kind.BORROWED:
            return self._borrows(one, more=job.gpus)
        return one.is_exceeded(job.gpus)

    def _borrows(self, one: LimitUsage, *, more: int) -> bool:
        """Returns whether the limit `one` on borrowed GPUs is exceeded, or would be exceeded by `more` additional GPUs.

        - If `more` is 0: whether the limit is exceeded on at least one generation.
        - Otherwise: whether no generation has room for the additional GPUs, which can be of any generation.

        Considers only generations of which the limit's tenant, with its subtree, is entitled to GPUs.
        """
        most = 1 + float(one.quota.limit)
        key = one.quota.pk, more
        if key not in self._shares:
            self._shares[key] = shares_of(one.quota, cluster=self.cluster, more=more)
        shares = self._shares[key]
        over = [have > earns * most for have, earns in shares if earns > 0]
        return bool(over) and (all(over) if more else any(over))

    def _lasts(self, one: LimitUsage, job: Job) -> bool:
        """Returns whether what is left of a limit on GPU-hours or money is enough for one quantum.

        Assumes that `job`, and all jobs that now hold or reserve GPUs under this limit, run for the whole quantum.
        """
        quota = one.quota
        had = gpus_had(quota, one.tenant, job.owner)
        kinds = set(job.generation_ids) or set(had) | set(self._prices)
        weights = {kind: self._weight(quota, kind) for kind in {*kinds, *had}}
        least = min((weights[kind] for kind in kinds), default=Decimal(1))
        gpus = sum((weights[kind] * some for kind, some in had.items()), job.gpus * least)
        return left_of(quota, one.used) >= gpus * Decimal(str(self.cluster.effective_quantum))

    def _weight(self, quota: Quota, generation: int) -> Decimal:
        """Returns how much of the limit one GPU of a generation uses per hour: its price for a limit on money,
        otherwise 1."""
        return self._prices.get(generation, Decimal(0)) if quota.kind == Quota.Kind.MONEY else Decimal(1)

    def _when(self, one: LimitUsage, job: Job) -> str:
        quota = one.quota
        if quota.tenant_id not in self.seen(job):
            return "The job starts when the limit leaves enough room for the job again."
        raised = (
            f"a manager of {quota.tenant.name} raises the limit"
            if quota.by_managers
            else "the limit is raised"
        )
        if quota.kind in Quota.OF_A_PERIOD:
            ends = one.ends or frees_at(quota, one.account, self.now, unbooked())
            at = f", on {ends:%Y-%m-%d} at {ends:%H:%M} UTC" if ends else ""
            if one.ends:
                return f"The job starts when the limit's period is over{at}, or when {raised}."
            return f"The job starts when enough usage is older than the limit's period{at}, or when {raised}."
        if one.user or quota.tenant_id == job.tenant_id:
            return f"The job starts when a job of {one.whose} ends, or when {raised}."
        return (
            f"The job starts when a job of {one.whose}, or of a team below {one.whose}, ends, or when the limit is"
            " raised."
        )
