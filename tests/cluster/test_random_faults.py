"""Tests with random faults between Fairlot and its cluster, in which processes are killed at random steps.

    make soak                                                                 a thousand runs with random seeds
    make test                                                                 a few seeds that once found faults
    RUNS=50 .venv/bin/python -m pytest -s tests/cluster/test_random_faults.py          this many runs
    SEEDS="17 4711" .venv/bin/python -m pytest -s tests/cluster/test_random_faults.py  runs with these seeds

STORM_LOG names a file to which each run appends one line when it ends.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane

# Seeds that once found faults of Fairlot. They are used if neither RUNS nor SEEDS is set.
FOUND_FAULTS = [2475765133, 680499273, 4008953099, 3288839857, 2394722875]
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "").split()]
SEEDS += [secrets.randbits(32) for _ in range(int(os.environ.get("RUNS", "0")))]
SEEDS = SEEDS or FOUND_FAULTS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_no_fault_and_no_death_starts_twice_leaks_loses_or_misbills(
    plane: ControlPlane, fairlot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cluster import storm, weather  # noqa: PLC0415 - models need settings, which come later
    from tests.make import cast  # noqa: PLC0415

    with storm.in_haste():
        summary = weather.forecast(plane, fairlot, cast(), tmp_path, SEEDS)
    with capsys.disabled():
        sys.stdout.write(f"\n{summary.line()}\n")
    assert summary.runs == len(SEEDS)
    assert not summary.failures, summary.report()
