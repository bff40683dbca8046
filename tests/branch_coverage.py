"""Measures the tests' branch coverage of each top-level package, and fails the run if a package is below its floor.

`MEASURE=1 make test` measures coverage, as `.ci/run` does. Only code that runs in pytest's processes is counted. Code
in the portals and workers that tests start is not counted, and neither is code that browser tests call. Migrations are
left out.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import floor
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Percent of lines and branches, rounded down. The summary of a run says which floor can be raised.
FLOORS = {"fairshare": 96, "accounting": 97, "scheduling": 91, "portal": 96}
MEASURE, FOLDER = "MEASURE", "FAIRLOT_COVERAGE_FOLDER"


def measure(config: pytest.Config) -> None:
    """Measures coverage in this process until pytest ends. Must be called before any of the measured packages is
    imported."""
    measured = _coverage(data_suffix=f"{os.getpid()}")
    measured.start()

    def save() -> None:
        measured.stop()
        measured.save()

    config.add_cleanup(save)


@contextmanager
def paused() -> Iterator[None]:
    """Pauses the measurement during the block. It is needed around Playwright."""
    measured = coverage.Coverage.current()
    # Playwright switches between greenlets, and the measurement would mix up their stack frames.
    if measured is not None:
        measured.stop()
    try:
        yield
    finally:
        if measured is not None:
            measured.start()


class Floors:
    """A pytest plugin that compares the combined coverage of all processes with the minimums in FLOORS when a run
    ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @pytest.hookimpl(trylast=True)  # runs after xdist has ended its workers
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
    """Returns one line for each measured package with its coverage and its floor.

    The line begins with "error" if the coverage is below the floor.
    """
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
        # Not "greenlet": greenlet then clears up after each thread that ends, by a pending call of the main thread, and
        # CPython 3.11 spins for ever in a traced pending call while another one waits.
        concurrency="thread",
        messages=False,
    )
