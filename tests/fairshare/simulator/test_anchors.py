"""Tests that the simulator reproduces published figures exactly. TRACES=FOLDER names the folder of the traces, see
anchors.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fairshare.anchors import ROWS, read, replayed

CASES = [
    pytest.param(name, nodes, rule, figures, id=f"{Path(name).stem}-{rule}")
    for name, nodes, rows in ROWS
    for rule, figures in rows.items()
]


@pytest.fixture(scope="module")
def traces() -> Path:
    """Returns the folder of the traces. Skips the test if TRACES is not set, and fails if the traces are missing."""
    folder = os.environ.get("TRACES")
    if not folder:
        pytest.skip("the published traces are not part of this repository; TRACES=FOLDER says where they lie")
    return Path(folder)


@pytest.mark.parametrize(("name", "nodes", "rule", "figures"), CASES)
def test_the_simulator_reproduces_a_published_figure(
    traces: Path, name: str, nodes: int, rule: str, figures: tuple[float, float]
) -> None:
    """Proves that a replay has exactly the published mean completion time (to three decimals) and makespan, in
    seconds."""
    assert replayed(read(traces / name), nodes, rule) == figures
