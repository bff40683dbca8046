"""Finds the jobs that used the most GPU time.

A period may have hundreds of thousands of jobs, but a page shows only a few of them. To sum all jobs exactly, as
decimals, PostgreSQL needs several times as long as to return the GPU-microseconds of each row. So Python ranks the jobs
by these, and only the shown jobs are summed exactly. The ranking is exact for jobs with less than 2^53 GPU-microseconds
(2.5 million GPU-hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from accounting.core.packed import MICROSECONDS, Floats, Ints
from accounting.usage.columns import Rows, joined

# If the range of job ids is smaller than this times the number of rows, sums use an array with a place for each id.
DENSE = 16


@dataclass(frozen=True, slots=True)
class Ranked:
    """Represents the jobs with the most GPU time, as (job id, currency) pairs, most GPU time first.

    `count`: the number of all jobs. `most`: the GPU-seconds of the largest job.
    """

    jobs: Sequence[tuple[int, str]]
    count: int
    most: Decimal


def largest_jobs(rows: Sequence[Rows], wanted: slice) -> Ranked:
    """Returns the slice `wanted` of the jobs in `rows`, sorted by GPU-seconds in descending order, then by id.

    Leaves out jobs whose usage has been completely reversed by corrections. `rows` must have the key job_id and the
    amount gpu_seconds.
    """
    found = [(one.currency, *_by_job(one.keys["job_id"], one.amounts["gpu_seconds"])) for one in rows]
    jobs = joined(jobs for _, jobs, _ in found)
    sizes = np.concatenate([np.empty(0), *(sizes for *_, sizes in found)])
    currencies = np.repeat(
        np.array([currency for currency, *_ in found], dtype=object), [len(one[1]) for one in found]
    )
    there = sizes > 0
    jobs, sizes, currencies = jobs[there], sizes[there], currencies[there]
    if not len(jobs):
        return Ranked((), 0, Decimal(0))
    if wanted.stop < len(jobs):  # sorts only jobs that may be in the slice
        least = np.partition(sizes, -wanted.stop)[-wanted.stop]
        shown = np.flatnonzero(sizes >= least)
    else:
        shown = np.arange(len(jobs))
    order = sorted(shown, key=lambda i: (-sizes[i], jobs[i], currencies[i]))[wanted]
    return Ranked(
        [(int(jobs[i]), currencies[i]) for i in order], len(jobs), Decimal(int(sizes.max())) / MICROSECONDS
    )


def _by_job(numbers: Ints, parts: Ints) -> tuple[Ints, Floats]:
    """Returns a pair: the distinct job ids, and the total GPU-microseconds of each job.

    `numbers`: the job id of each row. `parts`: the GPU-microseconds of each row.
    """
    first, last = int(numbers.min()), int(numbers.max())
    if last - first < DENSE * len(numbers):  # usual: the jobs of a period have ids close together
        sizes: Floats = np.bincount(numbers - first, weights=parts).astype(np.float64, copy=False)
        jobs = np.flatnonzero(sizes).astype(np.int64, copy=False)
        return jobs + first, sizes[jobs]
    jobs, places = np.unique(numbers, return_inverse=True)
    return jobs, np.bincount(places, weights=parts).astype(np.float64, copy=False)
