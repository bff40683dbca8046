"""How long jobs waited, and how much longer they took than they ran, by generation and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from accounting.models import Generation, Tenant, User

# The fewest GPUs of each size class but the first, which begins at 1.
CLASS_BOUNDS = (2, 5, 9, 17)
SIZES = ("1", "2–4", "5–8", "9–16", "17 and more")

# A job's generation is that of its first turn: what it waited for. Index only on `job_first_started`, then a look
# at each job's first lease by its unique index.
WAITS = """
    SELECT generation_id, size, count(*), percentile_cont(ARRAY[0.5, 0.9, 0.95]) WITHIN GROUP (ORDER BY waited),
           avg(waited), max(waited)
      FROM (
        SELECT width_bucket(workers * gpus_per_worker, %(bounds)s::int[]) AS size, generation_id,
               greatest(extract(epoch FROM first_started_at - created_at), 0)::float8 AS waited
          FROM scheduling_job job CROSS JOIN LATERAL (
               SELECT generation_id FROM scheduling_lease WHERE job_id = job.id AND held_from IS NOT NULL
                ORDER BY epoch LIMIT 1) first_turn
         WHERE first_started_at >= %(begins)s AND first_started_at < %(ends)s AND kind <> 'replica'
           AND (%(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s))
      ) jobs
     GROUP BY GROUPING SETS ((), (size), (generation_id), (generation_id, size))
"""
# Index only on `job_ended_anywhere`, then a look at the leases of each job by their unique index.
EXPANSIONS = """
    SELECT generation_id, size, count(*), sum(gpus * lasted) / sum(gpus * ran),
           percentile_cont(ARRAY[0.5, 0.9, 0.95]) WITHIN GROUP (ORDER BY lasted / ran)
      FROM (
        SELECT width_bucket(workers * gpus_per_worker, %(bounds)s::int[]) AS size, generation_id,
               workers * gpus_per_worker AS gpus, ran,
               greatest(extract(epoch FROM ended_at - created_at)::float8, ran) AS lasted
          FROM scheduling_job job CROSS JOIN LATERAL (
               SELECT sum(extract(epoch FROM held_until - held_from))::float8 AS ran,
                      (array_agg(generation_id ORDER BY epoch))[1] AS generation_id
                 FROM scheduling_lease WHERE job_id = job.id AND held_from IS NOT NULL) turns
         WHERE ended_at >= %(begins)s AND ended_at < %(ends)s AND kind = 'training' AND ran > 0
           AND (%(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s))
      ) jobs
     GROUP BY GROUPING SETS ((), (size), (generation_id), (generation_id, size))
"""


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
        Wait(generation, size, jobs, percentiles[0], percentiles[1], percentiles[2], mean, most)
        for generation, size, jobs, percentiles, mean, most in _rows(WAITS, viewer, begins, ends, tenant)
    ]


def expansions(
    viewer: User | None, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[Expansion]:
    """As `waits`, in the same order."""
    return [
        Expansion(generation, size, jobs, weighted, *percentiles)
        for generation, size, jobs, weighted, percentiles in _rows(EXPANSIONS, viewer, begins, ends, tenant)
    ]


def tenants_seen(viewer: User | None, tenant: Tenant | None) -> list[int] | None:
    """Their ids; None are all."""
    if tenant is None and (viewer is None or viewer.is_operator):
        return None
    found = Tenant.objects.all() if viewer is None else Tenant.objects.visible_to(viewer)
    if tenant is not None:
        found = found.filter(path__startswith=tenant.path)
    return list(found.order_by().values_list("pk", flat=True))


def _rows(
    statement: str, viewer: User | None, begins: datetime, ends: datetime, tenant: Tenant | None
) -> list[Sequence[Any]]:
    """The statement's rows with names, in order; nothing where there are no jobs."""
    values = {
        "begins": begins,
        "ends": ends,
        "tenants": tenants_seen(viewer, tenant),
        "bounds": list(CLASS_BOUNDS),
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found = [row for row in cursor.fetchall() if row[2]]
    names = dict(Generation.objects.values_list("pk", "name")) if found else {}
    named = [
        (None if pk is None else names[pk], None if size is None else SIZES[size], *rest)
        for pk, size, *rest in found
    ]
    return sorted(named, key=_in_order)


def _in_order(row: Sequence[Any]) -> tuple[object, ...]:
    generation, size = row[:2]
    return (
        generation is not None,
        generation is not None and size is not None,
        generation or "",
        -1 if size is None else SIZES.index(size),
    )
