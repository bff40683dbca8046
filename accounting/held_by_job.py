"""What each job held, as it was booked: a statement that others build on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F, Sum

from accounting.adding import union_all
from accounting.clipping import LOWER, UPPER, earliest, gpu_seconds_between, latest, moment, part_between
from accounting.models import User
from accounting.sources import Row, Scope, Sources

HOLDER = ("job_id", "tenant_id", "user_id", "generation_id")


def held_by_job(
    viewer: User | None, begins: datetime, ends: datetime, narrow: Mapping[str, Any]
) -> tuple[str, list[Any]] | None:
    """SQL with its values: by_ each of HOLDER, gpu_seconds_sum and of these idle_sum, in [begins, ends).

    A job may have several rows. None where it is clear that there are none. Who pays is whom a correction names.
    """
    sources = Sources(Scope(viewer, begins, ends, narrow), Row(None, "UTC"), by_job=True)
    keys = {f"by_{name}": F(name) for name in HOLDER}
    parts = [
        some.values(**keys).annotate(gpu_seconds_sum=Sum("gpu_seconds"), idle_sum=Sum("idle"))
        for some in sources.sums()
    ]
    start, end = latest(LOWER, moment(begins)), earliest(UPPER, moment(ends))
    parts += [
        some.annotate(part_start=start, part_end=end)
        .filter(part_start__lt=F("part_end"))
        .values(**keys)
        .annotate(gpu_seconds_sum=gpu_seconds_between(start, end), idle_sum=part_between("idle", start, end))
        for some in sources.segments()
    ]
    return union_all(parts, [*keys, "gpu_seconds_sum", "idle_sum"])
