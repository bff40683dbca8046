"""Who held what, as it was booked, by user or by job: numbers that others make figures of.

A month of a big cluster has a hundred thousand such rows. They come as bytes, a string of all of them, and are added up
here: as rows of decimals that takes several times as long. Amounts are whole microseconds in 64 bits, so that sums are
exact: 2.5 billion GPU-hours fit, and 2.5 million in one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
from django.db import connection
from django.db.models import F, Q
from numpy.typing import NDArray

from accounting.adding import union_all
from accounting.clipping import (
    LOWER,
    UPPER,
    earliest,
    gpu_seconds_of_each,
    latest,
    moment,
    part_of_each,
)
from accounting.models import Tenant, User
from accounting.sources import Row, Scope, Sources

USER = ("generation_id", "tenant_id", "user_id")
JOB = ("job_id", *USER)
MICROSECONDS = 1_000_000

Ints: TypeAlias = NDArray[np.int64]


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
    return _held(Scope(viewer, begins, ends, tenant=tenant), begins, ends, USER, Q())


def held_by_job(
    viewer: User | None, begins: datetime, ends: datetime, *, only: Q, tenant: Tenant | None = None
) -> Held:
    """The same by each of JOB, of what is `only` meant; that may name the job_id and idle (GPU-seconds of a row)."""
    return _held(Scope(viewer, begins, ends, tenant=tenant), begins, ends, JOB, only)


def add_up(keys: Sequence[Ints], amounts: Sequence[Ints]) -> tuple[list[Ints], list[Ints]]:
    """The sums of each group of rows with the same keys; groups are in order of their keys."""
    if not len(keys[0]):
        return list(keys), list(amounts)
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return [key[starts] for key in keys], [np.add.reduceat(amount[order], starts) for amount in amounts]


def _held(scope: Scope, begins: datetime, ends: datetime, names: Sequence[str], only: Q) -> Held:
    sources = Sources(scope, Row(None, "UTC"), by_job=names == JOB)
    columns = {f"by_{name}": F(name) for name in names}
    start, end = latest(LOWER, moment(begins)), earliest(UPPER, moment(ends))
    parts: list[Any] = [
        some.filter(only).values(**columns, held_part=F("gpu_seconds"), idle_part=F("idle"))
        for some in sources.sums()
    ]
    parts += [
        some.filter(only)
        .annotate(part_start=start, part_end=end)
        .filter(part_start__lt=F("part_end"))
        .values(
            **columns,
            held_part=gpu_seconds_of_each(start, end),
            idle_part=part_of_each("idle", start, end),
        )
        for some in sources.segments()
    ]
    rows = union_all(parts, [*columns, "held_part", "idle_part"])
    packed = _packed(*rows, list(columns)) if rows else b""
    found = np.frombuffer(
        packed, dtype=[*((name, ">i8") for name in names), ("held", ">f8"), ("idle", ">f8")]
    )
    amounts = [
        np.rint(found[name].astype(np.float64) * MICROSECONDS).astype(np.int64) for name in ("held", "idle")
    ]
    keys, (held, idle) = add_up([found[name].astype(np.int64) for name in names], amounts)
    there = held > 0  # of what was taken back nothing is left
    return Held({name: key[there] for name, key in zip(names, keys, strict=True)}, held[there], idle[there])


def _packed(rows: str, values: Sequence[Any], columns: Sequence[str]) -> bytes:
    numbers = [*(f"int8send({name})" for name in columns), "float8send(held_part::float8)"]
    row = " || ".join([*numbers, "float8send(idle_part::float8)"])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT string_agg({row}, '') FROM ({rows}) AS parts", values)  # noqa: S608 - own names
        (packed,) = cursor.fetchone()
    return packed or b""
