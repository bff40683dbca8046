"""Finds and ends the processes that a killed supervisor has left running.

Each service has variables in its environment that mark it, and its children inherit these variables. Jobs are not
marked, because they get no variables of the portal's environment.
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

# The kernel sends services a signal when their supervisor dies, but a service that is just starting may not handle it
# yet.
GUARD_PATIENCE = 5.0


def service_mark(name: str) -> dict[str, str]:
    """Returns environment variables that mark the processes of the service `name` and contain the pid of this
    supervisor."""
    return {"FAIRLOT_SERVICE": name, "FAIRLOT_SUPERVISOR": str(os.getpid())}


def marked_processes(home: Home, supervisor: int | None = None) -> Iterator[int]:
    """Yields the pids of this folder's services and of their children, of all supervisors or of the one with the pid
    `supervisor`."""
    wanted = {f"FAIRLOT_VAR={home.var}".encode()}
    if supervisor is not None:
        wanted.add(f"FAIRLOT_SUPERVISOR={supervisor}".encode())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # the process ended meanwhile, or belongs to another user
        if wanted <= set(environment) and any(item.startswith(b"FAIRLOT_SERVICE=") for item in environment):
            yield int(entry.name)


def end_leftovers(home: Home, patience: float, supervisor: int | None = None) -> None:
    """Waits until the marked processes have ended; kills those that still run after `patience` seconds."""
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
    """Runs a guard process beside the block, which ends the services if this process is killed.

    The guard reads a pipe that the kernel closes when this process ends. At the end of the block, closes the pipe
    and waits for the guard.
    """
    guard = subprocess.Popen(
        [sys.executable, "-m", "embedded", "guard", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "FAIRLOT_VAR": str(home.var)},
        start_new_session=True,
    )
    with guard:  # on exit closes the pipe, then waits for the guard
        yield


def guard(home: Home, supervisor: int) -> None:
    """Reads standard input until the supervisor closes it, then ends the services that the supervisor has left
    running."""
    sys.stdin.buffer.read()
    end_leftovers(home, GUARD_PATIENCE, supervisor)
