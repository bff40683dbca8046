"""Branch coverage of each room by the tests, which may only rise.

`MEASURE=1 make test` measures it, as `.ci/run` does. It counts code that runs in the processes of pytest, not in the
portals and workers that tests start. Migrations are left out.
"""

from __future__ import annotations

import io
import os
from math import floor
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Per cent of lines and branches, rounded down. A run says when one can be raised.
FLOORS = {"fairshare": 53, "accounting": 56, "scheduling": 36, "portal": 50}
MEASURE, FOLDER = "MEASURE", "FAIRLOT_COVERAGE_FOLDER"


def measure(config: pytest.Config) -> None:
    """Measures this process until it ends; before it imports any room."""
    measured = _coverage(data_suffix=f"{os.getpid()}")
    measured.start()

    def save() -> None:
        measured.stop()
        measured.save()

    config.add_cleanup(save)


class Floors:
    """Compares what all processes have measured with the floors, once they have ended."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        measured = _coverage()
        measured.combine()
        covered = {
            room: measured.report(
                include=f"{ROOT / room}/*", omit="*/migrations/*", file=io.StringIO(), show_missing=False
            )
            for room in FLOORS
        }
        self.lines = verdicts(covered)
        if any(line.startswith("error") for line in self.lines):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("branch coverage")
        for line in self.lines:
            terminalreporter.line(line)


def verdicts(covered: dict[str, float]) -> list[str]:
    """Says for each room how much is covered; begins with "error" where that is below the floor."""
    said = []
    for room, percent in covered.items():
        least = FLOORS[room]
        text = f"{room}: {percent:.1f} % of lines and branches, floor {least} %"
        if percent < least:
            text = f"error: {text}"
        elif floor(percent) > least:
            text += f"; raise it to {floor(percent)} in tests/branch_coverage.py"
        said.append(text)
    return said


def _coverage(data_suffix: str | None = None) -> coverage.Coverage:
    return coverage.Coverage(
        data_file=str(Path(os.environ[FOLDER]) / "data"),
        data_suffix=data_suffix,
        config_file=False,
        branch=True,
        source=[str(ROOT / room) for room in FLOORS],
        concurrency=["thread", "greenlet"],  # Playwright switches greenlets
        messages=False,
    )
