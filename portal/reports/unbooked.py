"""Finds usage of running and ended leases that the ledger has not booked yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from django.db.models import (
    Count,
    ExpressionWrapper,
    F,
    FloatField,
    Min,
    OuterRef,
    QuerySet,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce, Extract, Greatest, Least, Now

from accounting.core.prepared import Prepared
from accounting.core.wording import counted, fixed
from scheduling.models import Job, Lease


@dataclass(frozen=True)
class Unbooked:
    gpu_seconds: float
    jobs: int
    since: datetime | None = None  # all usage before this time is booked; None if nothing is unbooked

    def in_words(self, zone: tzinfo) -> str:
        """Returns a note on the unbooked usage, for the header of a report; "" if all usage is booked."""
        if self.since is None:
            return ""
        hours, jobs = self.gpu_seconds / 3600, counted(self.jobs, "job")
        until = f"{self.since.astimezone(zone):%-d %B %Y, %H:%M:%S %Z}"
        return (
            f"{fixed(hours, 2)} GPU-hours of {jobs} are not in these figures. All usage "
            f"until {until} is booked."
        )


def unbooked(tenants: Sequence[int] | None, begins: datetime, ends: datetime) -> Unbooked:
    """Returns the unbooked usage of the given tenants from `begins` to `ends` (excluded). `tenants` are ids; None means
    all."""
    found = _open.first(begins, ends, *([] if tenants is None else [tenants]))
    if found is None:  # there is no row without an open lease of these tenants
        return Unbooked(0.0, 0)
    total, jobs, since = found
    return Unbooked(total or 0.0, jobs, since)


def _held(begins: datetime, ends: datetime, tenants: Sequence[int] | None = None) -> QuerySet[Lease, Any]:
    """Returns a query that adds up the usage that the ledger has not booked yet.

    The result of the query is one row: the GPU-seconds, the number of jobs, and the start of the earliest unbooked
    usage. If all usage is booked, the result is empty. The query covers the usage of `tenants` (ids; None means all
    tenants) from `begins` to `ends` (excluded).
    """
    start = Greatest(Coalesce("billed_until", "held_from"), Value(begins))
    end = Least(Coalesce("held_until", Now()), Value(ends))
    seconds = Extract(F("open_end") - F("open_start"), "epoch")
    open_leases = (
        Lease.objects.unbooked().annotate(open_start=start, open_end=end).filter(open_end__gt=F("open_start"))
    )
    if tenants is not None:
        # A subquery per lease: a join would read the leases of all jobs that these tenants ever had, although few
        # leases are unbooked.
        job = Job.objects.filter(pk=OuterRef("job_id"))
        open_leases = open_leases.alias(payer=Subquery(job.values("tenant_id"))).filter(payer__in=tenants)
    of_all = open_leases.order_by().values(every=Value(1))  # a constant, so that all rows are one group
    return of_all.annotate(
        total=Sum(ExpressionWrapper(F("gpus") * seconds, output_field=FloatField())),
        jobs=Count("job", distinct=True),
        since=Min("open_start"),
    ).values_list("total", "jobs", "since")


_open = Prepared(_held)
