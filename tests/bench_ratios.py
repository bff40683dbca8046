"""Measures ratios between durations, which depend little on the machine. `python -m tests.bench_ratios` checks their
ranges.

`make bench` runs this module, which fails if a ratio is out of its range. It measures CPU time, so that other programs
affect the result little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from time import process_time

from fairshare.codec import encode
from fairshare.model import Snapshot
from tests.fairshare.build import decide
from tests.fairshare.synthetic import synthetic_snapshot

REPEATS = 3


def deciding(view: Snapshot) -> Callable[[], object]:
    return lambda: decide(view, 1)


def size(gpus: int, jobs_per_gpu: float = 10, teams: int = 20, kinds: int = 3) -> Snapshot:
    names = tuple(f"G{kind}" for kind in range(kinds))
    return synthetic_snapshot(gpus, jobs_per_gpu, teams, seed=1, generations=names)


def elastic(view: Snapshot) -> Snapshot:
    """Returns the view in which every gang may have up to four times its workers."""
    jobs = view.jobs
    return replace(view, jobs=replace(jobs, least=jobs.workers, most=4 * jobs.workers))


USUAL = size(1000)
IDLE = size(1000, jobs_per_gpu=0.2)
# By name: the two functions to time, and the least and greatest accepted ratio of the first time to the second.
RATIOS: dict[str, tuple[Callable[[], object], Callable[[], object], float, float]] = {
    "deciding: 10 times the GPUs, jobs and teams": (
        deciding(size(10_000, teams=200)), deciding(USUAL), 2.0, 20.0,
    ),
    "deciding: 10 times the jobs": (deciding(USUAL), deciding(size(1000, jobs_per_gpu=1)), 0.5, 3.0),
    "deciding: 10 times the teams": (deciding(size(1000, teams=200)), deciding(USUAL), 0.5, 3.0),
    "deciding: 12 GPU types in place of 3": (deciding(size(1000, kinds=12)), deciding(USUAL), 1.0, 6.0),
    "deciding: all jobs elastic, on a full cluster": (deciding(elastic(USUAL)), deciding(USUAL), 0.7, 1.8),
    "deciding: all jobs elastic, on a half idle cluster": (deciding(elastic(IDLE)), deciding(IDLE), 0.7, 3.0),
    "recording a round, of the time to decide it": (lambda: encode(USUAL), deciding(USUAL), 0.01, 0.5),
}  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    """Runs `work` REPEATS times and returns the CPU seconds of the fastest run."""
    times = []
    for _ in range(REPEATS):
        begins = process_time()
        work()
        times.append(process_time() - begins)
    return min(times)


def main() -> int:
    """Prints each ratio with its range; returns the exit status: 1 if a ratio is outside its range, otherwise 0."""
    wrong = 0
    for name, (one, other, least, most) in RATIOS.items():
        ratio = seconds(one) / seconds(other)
        is_wrong = not least <= ratio <= most
        wrong += is_wrong
        sys.stdout.write(f"{name:<46} {ratio:6.2f}  ({least:g} to {most:g}){'  OUTSIDE' * is_wrong}\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
