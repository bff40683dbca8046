"""Finds and ends the processes of a supervisor that could not end them itself.

Every service has a mark in its environment, which its children inherit. Jobs have none, because nothing of the
portal's environment reaches a job.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded.environment import ROOT, Home

# The kernel signals services when their supervisor dies, but one that is just starting may not react.
GUARD_PATIENCE = 5.0


def service_mark(name: str) -> dict[str, str]:
    """Returns variables that mark a service's processes and name their supervisor."""
    return {"FAIRLOT_SERVICE": name, "FAIRLOT_SUPERVISOR": str(os.getpid())}


def marked_processes(home: Home, supervisor: int | None = None) -> Iterator[int]:
    """Yields the pids of this folder's services and their children; with `supervisor`, only of that one's."""
    wanted = {f"FAIRLOT_VAR={home.var}".encode()}
    if supervisor is not None:
        wanted.add(f"FAIRLOT_SUPERVISOR={supervisor}".encode())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or belongs to another user
        if wanted <= set(environment) and any(item.startswith(b"FAIRLOT_SERVICE=") for item in environment):
            yield int(entry.name)


def end_leftovers(home: Home, patience: float, supervisor: int | None = None) -> None:
    """Waits `patience` seconds until the marked processes have ended, then kills them."""
    deadline = time.monotonic() + patience
    while pids := list(marked_processes(home, supervisor)):
        if time.monotonic() >= deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.02)


@contextmanager
def guarded(home: Home) -> Iterator[None]:
    """Starts a process that ends the services if this one is killed. It reads a pipe that closes with this process."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "embedded", "guard", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "FAIRLOT_VAR": str(home.var)},
        start_new_session=True,
    )
    with guard:  # closes the pipe and waits
        yield


def guard(home: Home, supervisor: int) -> None:
    """Waits for the end of standard input, then ends what this supervisor has left."""
    sys.stdin.buffer.read()
    end_leftovers(home, GUARD_PATIENCE, supervisor)
