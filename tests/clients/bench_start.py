"""Measures the start of the command line in CPU time, also in relation to that of Python itself.

`python -m tests.clients.bench_start` is part of `make bench`. It fails if `fairlot --version` takes more than
MOST_MILLISECONDS, or more than MOST times the time of an empty program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "clients" / "python"
STARTS = 10
MOST, MOST_MILLISECONDS = 12.0, 150


def seconds(*words: str) -> float:
    """Returns the CPU seconds of one start, the mean of several."""
    before = os.times()
    for _ in range(STARTS):
        subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": str(FOLDER)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return used / STARTS


def main() -> int:
    """Prints the times and their ratio. Returns 1 if one of them is too large."""
    empty, version = seconds("-c", ""), seconds("-m", "fairlot_client", "--version")
    ratio = version / empty
    sys.stdout.write(
        f"fairlot --version: {version * 1000:.0f} ms of CPU, {ratio:.1f} times an empty program\n"
    )
    return int(ratio > MOST or version * 1000 > MOST_MILLISECONDS)


if __name__ == "__main__":
    sys.exit(main())
