"""Who held what, as it was booked, by user or by job: numbers that others make figures of.

A month of a big cluster has a hundred thousand such rows, which come packed and are added up here. Amounts are whole
microseconds in 64 bits, so that sums are exact: 2.5 billion GPU-hours fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import F, Q

from accounting.adding import union_all
from accounting.clipping import LOWER, UPPER, gpu_seconds_of_each, part_of_each
from accounting.models import Tenant, User
from accounting.packed import Ints, ints, packed_ints, packed_microseconds
from accounting.sources import Row, Scope, Sources
from accounting.usage_rows import clipped

USER = ("generation_id", "tenant_id", "user_id")
JOB = ("job_id", *USER)
AMOUNTS = ("held_part", "idle_part")


@dataclass(frozen=True, slots=True)
class Held:
    """A row for each group, in order of its keys; in GPU-microseconds what was held, and of this idle."""

    keys: Mapping[str, Ints]
    held: Ints
    idle: Ints


def held_by_user(
    viewer: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> Held:
    """By each of USER in [begins, ends), what `viewer` may see (None: all), of `tenant` with all below it.

    Who pays is whom a correction names.
    """
    return _held(Scope(viewer, begins, ends, tenant=tenant), USER, Q())


def held_by_job(
    viewer: User | None, begins: datetime, ends: datetime, *, only: Q, tenant: Tenant | None = None
) -> Held:
    """The same by each of JOB, of rows for which `only` holds; it may name job_id and idle (GPU-seconds)."""
    return _held(Scope(viewer, begins, ends, tenant=tenant), JOB, only)


def sum_groups(keys: Sequence[Ints], amounts: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """The sums of each group of rows with the same keys; groups are in order of their keys."""
    if not len(keys[0]):
        return list(keys), list(amounts)
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return [key[starts] for key in keys], [np.add.reduceat(amount[order], starts) for amount in amounts]


def _held(scope: Scope, names: Sequence[str], only: Q) -> Held:
    sources = Sources(scope, Row(None, "UTC"), by_job=names == JOB)
    columns = {f"by_{name}": F(name) for name in names}
    parts: list[Any] = [
        some.filter(only).values(**columns, held_part=F("gpu_seconds"), idle_part=F("idle"))
        for some in sources.sums()
    ]
    start, end = F("part_start"), F("part_end")
    parts += [
        clipped(some.filter(only), LOWER, UPPER, scope).values(
            **columns,
            held_part=gpu_seconds_of_each(start, end),
            idle_part=part_of_each("idle", start, end),
        )
        for some in sources.segments()
    ]
    found = _read(union_all(parts, [*columns, *AMOUNTS]), list(columns))
    keys, (held, idle) = sum_groups(found[: len(names)], found[len(names) :])
    there = held > 0  # of what was taken back nothing is left
    return Held({name: key[there] for name, key in zip(names, keys, strict=True)}, held[there], idle[there])


def _read(rows: tuple[str, list[Any]] | None, columns: Sequence[str]) -> list[Ints]:
    """The columns, then AMOUNTS."""
    if rows is None:
        return [ints(None) for _ in (*columns, *AMOUNTS)]
    told = ", ".join([*map(packed_ints, columns), *map(packed_microseconds, AMOUNTS)])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {told} FROM ({rows[0]}) AS parts", rows[1])  # noqa: S608 - own names
        return [ints(data) for data in cursor.fetchone()]
