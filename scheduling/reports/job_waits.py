"""How long jobs waited, and their total time relative to their run time, by generation and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np
from django.db import connection

from accounting.core.packed import Floats, floats, packed_floats
from accounting.models import Generation

# The fewest GPUs of each size class except the first, which begins at 1.
CLASS_BOUNDS = (2, 5, 9, 17)
SIZES = ("1", "2–4", "5–8", "9–16", "17 and more")

# The indexes below begin with the team, so that only jobs of the given teams are read.
TENANTS = "coalesce(%(tenants)s::bigint[], ARRAY(SELECT id FROM accounting_tenant))"
# Values of many jobs come packed, by generation and size: sorting them here takes a fraction of the time of
# percentile_cont. A job's generation is that of its first attempt, which it waited for. Reads only the index
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
# Reads only the index `job_ended_in_team`.
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

    `generation` and `size` (one of SIZES) are None in rows over all of them.
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
    """(time running + time waiting) / time running of training jobs that ended in the period and held GPUs.

    A job runs while it holds its GPUs and waits in all other time from submit to end, including between attempts.
    `weighted` is XDMoD's User Expansion Factor: each job counts by its GPUs × time running.
    """

    generation: str | None
    size: str | None
    jobs: int
    weighted: float
    p50: float
    p90: float
    p95: float


def waits(tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Wait]:
    """Returns how long sessions and training jobs of these tenants, by id (None: all), waited.

    All together come first, then by size, by generation, and by both. Two queries, one of them for names.
    """
    return [
        Wait(generation, size, len(times), *_percentiles(times), float(times.mean()), float(times.max()))
        for generation, size, times, _ in _groups(WAITS, tenants, begins, ends)
    ]


def expansions(tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Expansion]:
    """Returns the expansion factors of the same jobs, in the order of `waits`."""
    return [
        Expansion(generation, size, len(factors), lasted / ran, *_percentiles(factors))
        for generation, size, factors, (lasted, ran) in _groups(EXPANSIONS, tenants, begins, ends)
    ]


Group: TypeAlias = tuple[str | None, str | None, Floats, Sequence[float]]


def _groups(statement: str, tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Group]:
    """Returns groups of generation and size (None: all) with the values of all their jobs and sums, in order."""
    values = {
        "begins": begins,
        "ends": ends,
        "tenants": tenants,
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
    """Returns percentiles, interpolated between the two nearest values."""
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
