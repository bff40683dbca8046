"""Tests that branch coverage below the floor fails the run, and that coverage above the floor gives a hint to raise
it."""

from __future__ import annotations

import pytest

from tests import branch_coverage


def test_a_room_below_its_floor_is_an_error_and_one_above_may_be_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branch_coverage, "FLOORS", {"portal": 80, "scheduling": 80, "accounting": 80})
    below, at, above = branch_coverage.verdicts({"portal": 79.9, "scheduling": 80.4, "accounting": 82.6})
    assert below.startswith("error: portal: 79.9 %")
    assert at == "scheduling: 80.4 % of lines and branches, floor 80 %"
    assert above.endswith("raise it to 82 in tests/branch_coverage.py")
