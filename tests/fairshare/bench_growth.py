"""Measures how the time of a decision grows with the cluster, for two policies: `python -m
tests.fairshare.bench_growth`.

- `--policies NAME:VERSION NAME:VERSION`: the policies (by default the newest version and version 1 of gandiva_fair).
- `--most`: the number of GPUs of the largest cluster.
- `--limit`: the seconds after which a measurement is given up.

The cluster is busy: first, one decision begins with a tenth of the jobs running. One quantum later, the second decision
is measured.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import multiprocessing.connection
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from fairshare.check.policies import NEWEST, POLICIES, VERSION_1
from fairshare.driver import Situation
from fairshare.model import Snapshot
from tests.fairshare.synthetic import synthetic_snapshot

SIZES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
ODD = (
    (1, 3, 0.2),
    (1, 5, 0.2),
    (1, 6, 0.1),
    (1, 7, 0.1),
    (3, 1, 0.1),
    (5, 3, 0.1),
    (7, 2, 0.1),
    (16, 8, 0.1),
)


def kinds(count: int) -> tuple[str, ...]:
    return tuple(f"G{k}" for k in range(count))


def size(gpus: int) -> Snapshot:
    return synthetic_snapshot(gpus, 10, max(gpus // 10, 5), 1, generations=kinds(6))


CASES: dict[str, Callable[[], Snapshot]] = {
    "10,000 users with 10 jobs each": lambda: synthetic_snapshot(
        10_000, 10, 0, 1, generations=kinds(6), levels=(10_000,)
    ),
    "2,000 users with 10 jobs each": lambda: synthetic_snapshot(
        2000, 10, 0, 1, generations=kinds(6), levels=(2000,)
    ),
    "a tree 10 deep with 1,024 leaves": lambda: synthetic_snapshot(
        10_000, 10, 0, 1, generations=kinds(6), levels=(2,) * 10
    ),
    "odd gangs of up to 16 × 8": lambda: synthetic_snapshot(
        10_000, 10, 1000, 1, generations=kinds(6), shapes=ODD
    ),
    "6 generations": lambda: synthetic_snapshot(1000, 10, 20, 1, generations=kinds(6)),
    "16 generations": lambda: synthetic_snapshot(1000, 10, 20, 1, generations=kinds(16)),
}


def seconds(policy: str, view: Snapshot) -> float:
    """Returns the duration of the policy's second decision on the cluster in `view`, in seconds.

    `policy`: the policy's name and version, such as "gandiva_fair:1".
    """
    first = Situation.first(POLICIES[policy].make(view.settings), view)
    now = first.after(first.decide(1))
    # A new policy object has no caches; only the state of the first decision is kept.
    fresh = POLICIES[policy].make(view.settings)
    chance = np.random.Generator(np.random.PCG64(2))
    start = perf_counter()
    fresh.decide(now.state, now.view, chance)
    return perf_counter() - start


def _report(policy: str, view: Snapshot, found: multiprocessing.connection.Connection) -> None:
    found.send(seconds(policy, view))


def timed(policy: str, view: Snapshot, limit: float) -> float:
    """Returns the duration of the policy's second decision in seconds, measured in a separate process.

    Returns infinity if the measurement takes more than `limit` seconds, and NaN if the process fails.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(policy, view, there))
    process.start()
    there.close()
    try:
        return float(here.recv()) if here.poll(limit) else math.inf
    except EOFError:  # the process failed and printed why
        return math.nan
    finally:
        process.terminate()
        process.join()


def exponent(sizes: list[int], times: list[float]) -> float:
    """Returns b if times grow as sizes to the power of b, fitted by least squares."""
    known = [(n, t) for n, t in zip(sizes, times, strict=True) if math.isfinite(t)]
    if len(known) < 2:
        return math.nan
    return float(np.polyfit(np.log([n for n, _ in known]), np.log([t for _, t in known]), 1)[0])


def row(name: str, times: list[float]) -> str:
    said = [f"{time:.3f} s" if math.isfinite(time) else "too long" for time in times]
    ratio = times[1] / times[0] if all(map(math.isfinite, times)) else math.nan
    return f"{name:<36} {said[0]:>10} {said[1]:>10} {ratio:>8.2f}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fairshare.bench_growth")
    parser.add_argument("--policies", nargs=2, choices=list(POLICIES), default=[NEWEST.name, VERSION_1.name])
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--limit", type=float, default=180.0)
    asked = parser.parse_args()
    say = sys.stdout.write
    say(f"{'one decision, busy':<36} {asked.policies[0]:>10} {asked.policies[1]:>10}    ratio\n")
    sizes = [gpus for gpus in SIZES if gpus <= asked.most]
    times = []
    for gpus in sizes:
        view = size(gpus)
        times.append([timed(policy, view, asked.limit) for policy in asked.policies])
        say(row(f"{gpus:,} GPUs, {gpus // 10:,} teams, {gpus * 10:,} jobs", times[-1]))
    found = [exponent(sizes, [both[i] for both in times]) for i in range(2)]
    plain = exponent(sizes, [n * math.log(n) for n in sizes])
    say(f"{'time grows with the power':<36} {found[0]:>10.2f} {found[1]:>10.2f}    (n log n: {plain:.2f})\n")
    for name, made in CASES.items():
        view = made()
        if int(view.cluster.capacity.sum()) <= asked.most:
            say(row(name, [timed(policy, view, asked.limit) for policy in asked.policies]))


if __name__ == "__main__":
    main()
