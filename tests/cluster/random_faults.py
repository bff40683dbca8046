"""Whatever goes wrong between Fairlot and its cluster, and whoever dies at whichever step.

    python -m tests.cluster.random_faults             ten runs, with seeds that nobody knows
    python -m tests.cluster.random_faults 17 4711     these runs again
    RUNS=1000 python -m tests.cluster.random_faults   so many; STORM_LOG names a file for a line on each

It is no part of `make test`: the pods of a long row of runs come to stand still in kwok (tests/cluster/storm.py).
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_no_fault_and_no_death_starts_twice_leaks_loses_or_misbills(
    plane: ControlPlane, fairlot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cluster import storm, weather  # noqa: PLC0415 - models need Django, which `__main__` has not set up
    from tests.make import cast  # noqa: PLC0415

    seeds = [int(seed) for seed in os.environ.get("SEEDS", "").split()]
    seeds = seeds or [secrets.randbits(32) for _ in range(int(os.environ.get("RUNS", "10")))]
    with storm.in_haste():
        summary = weather.forecast(plane, fairlot, cast(), tmp_path, seeds)
    with capsys.disabled():
        sys.stdout.write(f"\n{summary.line()}\n")
    assert summary.runs == len(seeds)
    assert not summary.failures, summary.report()


if __name__ == "__main__":
    if sys.argv[1:]:
        os.environ["SEEDS"] = " ".join(sys.argv[1:])
    sys.exit(pytest.main([__file__]))
