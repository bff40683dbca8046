"""The data folder with which each portal of a test run starts: one portal migrates and loads the demo for all."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from embedded.environment import ROOT, code_fingerprint

# The folder of a test run. The process that starts the run sets it, and deletes the folder at the end.
FOLDER = "FAIRLOT_TEST_FOLDER"


def copy_prepared(var: Path, environment: Callable[[Path], Mapping[str, str]]) -> None:
    """Copies the prepared data folder of this test run to `var`, an empty folder. Does nothing outside a test run.

    The first call makes the prepared folder. `environment` returns the environment variables of a portal with the given
    data folder.
    """
    if FOLDER not in os.environ:
        return
    source = Path(os.environ[FOLDER]) / "prepared-portal"
    with source.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (source / "prepared").exists():
            _prepare(source, environment(source))
    # cp keeps the owners: the database belongs to PostgreSQL's unprivileged user
    subprocess.run(["cp", "-a", f"{source}/.", str(var)], check=True)
    for port in var.glob("*/port"):
        port.unlink()  # portals that run at the same time must not share the ports of their servers


def _prepare(source: Path, environment: Mapping[str, str]) -> None:
    """Does what the first `make up` does before it starts the portal's programs."""
    source.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "embedded", "run", "--", sys.executable, "-m", "embedded.prepare"]
    passwords = source / "secrets" / "demo-passwords"
    subprocess.run([*program, "--demo", str(passwords)], cwd=ROOT, env=environment, check=True)
    (source / "demo-loaded").touch()
    (source / "prepared").write_text(code_fingerprint())
