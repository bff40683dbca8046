"""How long jobs waited, and how much longer they took than they ran, by generation and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np
from django.db import connection

from accounting.access.visibility import tenants_seen
from accounting.core.packed import Floats, floats, packed_floats
from accounting.models import Generation, Tenant, User

# The fewest GPUs of each size class but the first, which begins at 1.
CLASS_BOUNDS = (2, 5, 9, 17)
SIZES = ("1", "2–4", "5–8", "9–16", "17 and more")

# The indexes read below begin with the team: of a team or some teams no other jobs are looked at.
TENANTS = "coalesce(%(tenants)s::bigint[], ARRAY(SELECT id FROM accounting_tenant))"
# Numbers of many jobs come packed, by generation and size: sorting them here takes a fraction of the time that
# percentile_cont takes. A job's generation is that of its first turn: what it waited for. Index only on
# `job_first_started`.
WAITS = f"""
    SELECT generation, size, {packed_floats("waited")}
      FROM (
        SELECT width_bucket(workers * gpus_per_worker, %(bounds)s::int[]) AS size, first_generation_id AS generation,
               greatest(date_part('epoch', first_started_at - created_at), 0) AS waited
          FROM scheduling_job
         WHERE first_started_at >= %(begins)s AND first_started_at < %(ends)s AND kind <> 'replica'
           AND tenant_id = ANY({TENANTS})
      ) jobs
     GROUP BY generation, size
"""  # noqa: S608 - of constants
# Index only on `job_ended_in_team`.
EXPANSIONS = f"""
    SELECT generation, size, {packed_floats("lasted / ran")}, sum(gpus * lasted), sum(gpus * ran)
      FROM (
        SELECT width_bucket(gpus, %(bounds)s::int[]) AS size, generation, gpus, ran, greatest(lasted, ran) AS lasted
          FROM (
            SELECT workers * gpus_per_worker AS gpus, first_generation_id AS generation,
                   date_part('epoch', held_for) AS ran, date_part('epoch', ended_at - created_at) AS lasted
              FROM scheduling_job
             WHERE ended_at >= %(begins)s AND ended_at < %(ends)s AND kind = 'training'
               AND first_generation_id IS NOT NULL
               AND tenant_id = ANY({TENANTS})
          ) ended WHERE ran > 0
      ) jobs
     GROUP BY generation, size
"""  # noqa: S608 - of constants
PERCENTILES = (50, 90, 95)


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds from submit to the first GPUs, of jobs that got them in the period; percentiles are interpolated.

    `generation` and `size` (one of SIZES) are None where all are together.
    """

    generation: str | None
    size: str | None
    jobs: int
    p50: float
    p90: float
    p95: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Expansion:
    """Of training jobs that ended in the period and held GPUs: (time running + time waiting) / time running.

    Running is all time in which a job held its GPUs, waiting all other time from submit to end, between its turns
    too. `weighted` is XDMoD's User Expansion Factor, each job counting by its GPUs × time running.
    """

    generation: str | None
    size: str | None
    jobs: int
    weighted: float
    p50: float
    p90: float
    p95: float


def waits(
    viewer: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[Wait]:
    """Of sessions and training jobs of tenants that `viewer` may see (None: all), `tenant` with all below it.

    All together first, then by size, by generation, and by both. Two queries, one of them for names.
    """
    return [
        Wait(generation, size, len(times), *_percentiles(times), float(times.mean()), float(times.max()))
        for generation, size, times, _ in _groups(WAITS, viewer, begins, ends, tenant)
    ]


def expansions(
    viewer: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[Expansion]:
    """As `waits`, in the same order."""
    return [
        Expansion(generation, size, len(factors), lasted / ran, *_percentiles(factors))
        for generation, size, factors, (lasted, ran) in _groups(EXPANSIONS, viewer, begins, ends, tenant)
    ]


Group: TypeAlias = tuple[str | None, str | None, Floats, Sequence[float]]


def _groups(
    statement: str, viewer: User | None, begins: datetime, ends: datetime, tenant: Tenant | None
) -> list[Group]:
    """Generation, size, the numbers of all jobs of both, and sums; None is all. In order, without groups of no job."""
    values = {
        "begins": begins,
        "ends": ends,
        "tenants": tenants_seen(viewer, tenant),
        "bounds": list(CLASS_BOUNDS),
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found = cursor.fetchall()
    names = dict(Generation.objects.values_list("pk", "name")) if found else {}
    parts: dict[tuple[str | None, str | None], list[tuple[Floats, Sequence[float]]]] = defaultdict(list)
    for pk, bucket, data, *sums in found:
        generation, size, numbers = names[pk], SIZES[bucket], floats(data)
        for key in ((None, None), (None, size), (generation, None), (generation, size)):
            parts[key].append((numbers, sums))
    return [
        (
            *key,
            np.concatenate([numbers for numbers, _ in some]),
            [sum(column) for column in zip(*(sums for _, sums in some), strict=True)],
        )
        for key, some in sorted(parts.items(), key=lambda item: _in_order(item[0]))
    ]


def _percentiles(numbers: Floats) -> tuple[float, float, float]:
    """Interpolated between the two nearest."""
    p50, p90, p95 = map(float, np.percentile(numbers, PERCENTILES))
    return p50, p90, p95


def _in_order(key: tuple[str | None, str | None]) -> tuple[object, ...]:
    generation, size = key
    return (
        generation is not None,
        generation is not None and size is not None,
        generation or "",
        -1 if size is None else SIZES.index(size),
    )
