"""Who held what, as it was booked, by user or by job: statements that others build on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F, Q, Sum

from accounting.adding import union_all
from accounting.clipping import LOWER, UPPER, earliest, gpu_seconds_between, latest, moment, part_between
from accounting.models import User
from accounting.sources import Row, Scope, Sources

USER = ("tenant_id", "user_id", "generation_id")
JOB = ("job_id", *USER)


def held_by_user(
    viewer: User | None, begins: datetime, ends: datetime, narrow: Mapping[str, Any]
) -> tuple[str, list[Any]] | None:
    """SQL with its values: by_ each of USER, gpu_seconds_sum and of these idle_sum, in [begins, ends).

    A user may have several rows. None where it is clear that there are none. Who pays is whom a correction names.
    """
    return _held(Scope(viewer, begins, ends, narrow), begins, ends, USER, Q())


def held_by_job(
    viewer: User | None, begins: datetime, ends: datetime, narrow: Mapping[str, Any], *, only: Q
) -> tuple[str, list[Any]] | None:
    """The same by_ each of JOB, of what is `only` meant; that may name the job_id and idle (GPU-seconds of a row)."""
    return _held(Scope(viewer, begins, ends, narrow), begins, ends, JOB, only)


def _held(
    scope: Scope, begins: datetime, ends: datetime, names: tuple[str, ...], only: Q
) -> tuple[str, list[Any]] | None:
    sources = Sources(scope, Row(None, "UTC"), by_job=names == JOB)
    keys = {f"by_{name}": F(name) for name in names}
    parts = [
        some.filter(only).values(**keys).annotate(gpu_seconds_sum=Sum("gpu_seconds"), idle_sum=Sum("idle"))
        for some in sources.sums()
    ]
    start, end = latest(LOWER, moment(begins)), earliest(UPPER, moment(ends))
    parts += [
        some.filter(only)
        .annotate(part_start=start, part_end=end)
        .filter(part_start__lt=F("part_end"))
        .values(**keys)
        .annotate(gpu_seconds_sum=gpu_seconds_between(start, end), idle_sum=part_between("idle", start, end))
        for some in sources.segments()
    ]
    return union_all(parts, [*keys, "gpu_seconds_sum", "idle_sum"])
