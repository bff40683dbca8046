"""Which jobs held most.

A period may have hundreds of thousands of jobs, of which a page shows a few. To add all of them up exactly, in groups
of decimals, takes several times as long as to bring two numbers of each row here; what is shown is added up exactly
afterwards. Nothing is rounded here where a job's sum stays below 2^53 microseconds: 2.5 million GPU-hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from accounting.core.packed import MICROSECONDS, Floats, Ints
from accounting.usage.columns import Rows, joined

# How many numbers of jobs there may be for each row, for sums to have a place for each number.
DENSE = 16


@dataclass(frozen=True, slots=True)
class Ranked:
    """Some jobs, each with its currency, in order; `count` is of all that there are, `most` the largest's GPU-s."""

    jobs: Sequence[tuple[int, str]]
    count: int
    most: Decimal


def largest_jobs(rows: Sequence[Rows], wanted: slice) -> Ranked:
    """Of all jobs that `rows` have, with their gpu_seconds, those `wanted` by size.

    Equals come in order of their numbers. Jobs of which corrections have left nothing are left out.
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
    if wanted.stop < len(jobs):  # sorts only what may be wanted
        least = np.partition(sizes, -wanted.stop)[-wanted.stop]
        shown = np.flatnonzero(sizes >= least)
    else:
        shown = np.arange(len(jobs))
    order = sorted(shown, key=lambda i: (-sizes[i], jobs[i], currencies[i]))[wanted]
    return Ranked(
        [(int(jobs[i]), currencies[i]) for i in order], len(jobs), Decimal(int(sizes.max())) / MICROSECONDS
    )


def _by_job(numbers: Ints, parts: Ints) -> tuple[Ints, Floats]:
    """Numbers of jobs, each once, and the GPU-microseconds of each."""
    first, last = int(numbers.min()), int(numbers.max())
    if last - first < DENSE * len(numbers):  # as jobs of one period mostly are; others are to be sorted
        sizes: Floats = np.bincount(numbers - first, weights=parts).astype(np.float64, copy=False)
        jobs = np.flatnonzero(sizes).astype(np.int64, copy=False)
        return jobs + first, sizes[jobs]
    jobs, places = np.unique(numbers, return_inverse=True)
    return jobs, np.bincount(places, weights=parts).astype(np.float64, copy=False)
