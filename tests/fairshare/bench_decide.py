"""Measures how long a decision of the default policy takes: `python -m tests.fairshare.bench_decide`."""

from __future__ import annotations

import sys
from time import perf_counter

from fairshare.codec import encode
from tests.fairshare.build import decide
from tests.fairshare.synthetic import synthetic_snapshot

SIZES = (100, 1000, 10_000)
JOBS_PER_GPU = 10
GPUS_PER_TENANT = 100
REPEATS = 3


def seconds(gpus: int) -> tuple[float, float, int]:
    """Returns (decision, encoding, jobs) for a synthetic cluster of about `gpus` GPUs.

    - `decision`: the shortest time of a decision, in seconds.
    - `encoding`: the shortest time of encoding the snapshot as bytes, in seconds.
    - `jobs`: the number of jobs that the last decision runs.
    """
    snapshot = synthetic_snapshot(gpus, JOBS_PER_GPU, max(gpus // GPUS_PER_TENANT, 5), seed=1)
    deciding, encoding = [], []
    for seed in range(REPEATS):
        start = perf_counter()
        decision = decide(snapshot, seed)
        middle = perf_counter()
        encode(snapshot)
        deciding.append(middle - start)
        encoding.append(perf_counter() - middle)
    return min(deciding), min(encoding), len(decision.run)


if __name__ == "__main__":
    for gpus in SIZES:
        deciding, encoding, picked = seconds(gpus)
        sys.stdout.write(
            f"{gpus:>6} GPUs, {gpus * JOBS_PER_GPU:>6} jobs: decided in {deciding * 1000:.0f} ms"
            f" ({picked} gangs picked), recorded in {encoding * 1000:.0f} ms\n"
        )
