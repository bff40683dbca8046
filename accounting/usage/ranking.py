"""Finds the jobs that held most.

A period may have hundreds of thousands of jobs, of which a page shows a few. Summing all of them exactly in
PostgreSQL, by decimals, takes several times as long as fetching two numbers of each row; so only the shown jobs are
summed exactly. The ranking rounds nothing while a job's sum stays below 2^53 microseconds, which is 2.5 million
GPU-hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from accounting.core.packed import MICROSECONDS, Floats, Ints
from accounting.usage.columns import Rows, joined

# The most job numbers per row for which sums have one place for each number in the range.
DENSE = 16


@dataclass(frozen=True, slots=True)
class Ranked:
    """Some jobs, each with its currency, in order of size. `count` counts all jobs; `most` is GPU-seconds of the
    largest."""

    jobs: Sequence[tuple[int, str]]
    count: int
    most: Decimal


def largest_jobs(rows: Sequence[Rows], wanted: slice) -> Ranked:
    """Returns the `wanted` jobs of `rows`, which have gpu_seconds, the largest first; ties come by number.

    Jobs of which corrections have left nothing are left out.
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
    if wanted.stop < len(jobs):  # sorts only jobs that may be among the wanted ones
        least = np.partition(sizes, -wanted.stop)[-wanted.stop]
        shown = np.flatnonzero(sizes >= least)
    else:
        shown = np.arange(len(jobs))
    order = sorted(shown, key=lambda i: (-sizes[i], jobs[i], currencies[i]))[wanted]
    return Ranked(
        [(int(jobs[i]), currencies[i]) for i in order], len(jobs), Decimal(int(sizes.max())) / MICROSECONDS
    )


def _by_job(numbers: Ints, parts: Ints) -> tuple[Ints, Floats]:
    """Returns the distinct job numbers, and the GPU-microseconds of each."""
    first, last = int(numbers.min()), int(numbers.max())
    if last - first < DENSE * len(
        numbers
    ):  # usual for jobs of one period, which are numbered in order of submission
        sizes: Floats = np.bincount(numbers - first, weights=parts).astype(np.float64, copy=False)
        jobs = np.flatnonzero(sizes).astype(np.int64, copy=False)
        return jobs + first, sizes[jobs]
    jobs, places = np.unique(numbers, return_inverse=True)
    return jobs, np.bincount(places, weights=parts).astype(np.float64, copy=False)
