"""The published rows, to the last digit: with TRACES=FOLDER, where the traces lie; see tests/fairshare/anchors.py."""

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
    """Skips where nobody says where they are; a folder without them is a failure."""
    folder = os.environ.get("TRACES")
    if not folder:
        pytest.skip("the published traces are not part of this repository; TRACES=FOLDER says where they lie")
    return Path(folder)


@pytest.mark.parametrize(("name", "nodes", "rule", "figures"), CASES)
def test_a_published_row_is_hit_exactly(
    traces: Path, name: str, nodes: int, rule: str, figures: tuple[float, float]
) -> None:
    """Mean completion time to three decimals, and makespan, in seconds."""
    assert replayed(read(traces / name), nodes, rule) == figures
