"""Statistics of the waiting times of jobs, and of their expansion factors, by generation and size of jobs.

The expansion factor of a job is (run time + wait time) / run time.
"""

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

# The least number of GPUs of each size class but the first, which begins at 1.
CLASS_BOUNDS = (2, 5, 9, 17)
SIZES = ("1", "2–4", "5–8", "9–16", "17 and more")

# The indexes that are named below begin with the team, so PostgreSQL reads only the given teams' jobs.
TENANTS = "coalesce(%(tenants)s::bigint[], ARRAY(SELECT id FROM accounting_tenant))"
# Returns the values of each group in packed form, because sorting them in NumPy takes a fraction of the time of
# percentile_cont. A job counts for the generation of its first attempt, for which it waited. Reads only the index
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
    """Statistics of the waiting times, in seconds, of a group of jobs that first got GPUs in the period.

    A waiting time lasts from submission to the first GPUs. `generation` None means all generations, and `size` None
    means all sizes (otherwise one of SIZES). Percentiles are interpolated.
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
    """Statistics of the expansion factors of a group of training jobs that held GPUs and ended in the period.

    A job's expansion factor is (run time + wait time) / run time. Run time is the time in which the job held its GPUs.
    Wait time is all other time from submission to end, including time between attempts. `weighted` is XDMoD's User
    Expansion Factor, in which each job counts by its GPUs × run time.
    """

    generation: str | None
    size: str | None
    jobs: int
    weighted: float
    p50: float
    p90: float
    p95: float


def waits(tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Wait]:
    """Returns statistics of the waiting times of sessions and training jobs. The first row is for all jobs.

    Then come rows by size, by generation, and by both. `tenants` are the ids of the tenants whose jobs count; None
    means all. Makes two queries.
    """
    return [
        Wait(generation, size, len(times), *_percentiles(times), float(times.mean()), float(times.max()))
        for generation, size, times, _ in _groups(WAITS, tenants, begins, ends)
    ]


def expansions(tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Expansion]:
    """Returns statistics of the expansion factors of training jobs, with rows in the order of `waits`.

    `tenants` are the ids of the tenants whose jobs count; None means all.
    """
    return [
        Expansion(generation, size, len(factors), lasted / ran, *_percentiles(factors))
        for generation, size, factors, (lasted, ran) in _groups(EXPANSIONS, tenants, begins, ends)
    ]


Group: TypeAlias = tuple[str | None, str | None, Floats, Sequence[float]]


def _groups(statement: str, tenants: list[int] | None, begins: datetime, ends: datetime) -> list[Group]:
    """Runs the SQL in `statement`, and returns a tuple for each group of jobs, in the order of `waits`.

    A tuple is (generation, size, values, sums):

    - generation, size: what the jobs of the group have in common; None for all generations or all sizes.
    - values: one value for each job, namely its waiting time in seconds (WAITS) or its expansion factor (EXPANSIONS).
    - sums: the group's total of each column that the statement sums; empty for WAITS.
    """
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
    """Returns the 50th, 90th and 95th percentile, interpolated between the two nearest values."""
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
