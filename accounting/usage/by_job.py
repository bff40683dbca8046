"""Who held what, as it was booked, by user or by job: numbers that others make figures of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Q

from accounting.core.consistent_read import read_once
from accounting.core.packed import Ints
from accounting.models import Tenant, User
from accounting.usage.packed_rows import Rows, joined, read_rows, sum_groups
from accounting.usage.plan import Row, Scope, Sources
from accounting.usage.rows import EVERYTHING, Groups

USER = ("generation_id", "tenant_id", "user_id")
JOB = ("job_id", *USER)
AMOUNTS = ("gpu_seconds", "idle")


@dataclass(frozen=True, slots=True)
class Held:
    """A row for each group, in order of its keys; in GPU-microseconds what was held, and of this idle."""

    keys: Mapping[str, Ints]
    held: Ints
    idle: Ints


def held_by_user(viewer: User | None, begins: datetime, ends: datetime) -> Held:
    """By each of USER in [begins, ends), what `viewer` may see (None: all). Who pays is whom a correction names."""
    return _held(Scope(viewer, begins, ends), USER, EVERYTHING)


def held_by_job(
    viewer: User | None, begins: datetime, ends: datetime, *, only: Q, tenant: Tenant | None = None
) -> Held:
    """The same by each of JOB, of `tenant` with all below it, of rows for which `only` holds.

    It may name job_id and idle (GPU-seconds).
    """
    if not only:
        return _in_all_currencies(job_rows(viewer, begins, ends, tenant), JOB)
    return _held(Scope(viewer, begins, ends, tenant=tenant), JOB, only)


@read_once
def job_rows(viewer: User | None, begins: datetime, ends: datetime, tenant: Tenant | None) -> list[Rows]:
    """All of it with what it cost, which is read once for all that a statement makes of it."""
    scope = Scope(viewer, begins, ends, tenant=tenant)
    groups = Groups({name: F(name) for name in JOB}, (), None, "UTC")
    sources = Sources(scope, Row(None, "UTC"), by_job=True)
    return read_rows(sources, scope, groups, [*AMOUNTS, "cost", "segments"])


def _held(scope: Scope, names: Sequence[str], only: Q) -> Held:
    sources = Sources(scope, Row(None, "UTC"), by_job=names == JOB)
    groups = Groups({name: F(name) for name in names}, (), None, "UTC")
    return _in_all_currencies(read_rows(sources, scope, groups, AMOUNTS, only=only), names)


def _in_all_currencies(rows: Sequence[Rows], names: Sequence[str]) -> Held:
    keys, (held, idle) = sum_groups(
        [joined(one.keys[name] for one in rows) for name in names],
        [joined(one.amounts[name] for one in rows) for name in AMOUNTS],
    )
    there = held > 0  # of what was taken back nothing is left
    return Held({name: key[there] for name, key in zip(names, keys, strict=True)}, held[there], idle[there])
