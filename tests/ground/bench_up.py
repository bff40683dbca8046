"""Measures the time from `make up` until the web server answers: `python -m tests.ground.bench_up`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.ground.up import Up

REPEATS = 3


def seconds_until_web_serves(folder: Path) -> float:
    """Starts Fairlot in `folder` and returns the seconds until its web server runs. Stops Fairlot once all services
    run."""
    began = time.monotonic()
    run = Up(folder)
    try:
        run.wait_for(r"^web +running")
        took = time.monotonic() - began
        run.wait_until_running()
    finally:
        run.stop()
    return took


if __name__ == "__main__":
    var = Path(tempfile.mkdtemp(prefix="fairlot-up-"))
    var.chmod(0o711)
    try:
        first = seconds_until_web_serves(var)
        later = [seconds_until_web_serves(var) for _ in range(REPEATS)]
    finally:
        shutil.rmtree(var)
    sys.stdout.write(
        f"make up until the portal serves: {first:.1f} s the first time, when the demo is made;"
        f" {min(later):.1f} to {max(later):.1f} s with its data there ({REPEATS} starts)\n"
    )
