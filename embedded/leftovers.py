"""Finds and ends processes that were left running when a supervisor was killed.

Each service has environment variables that mark it, and its child processes inherit these variables. Jobs are not
marked, because they do not get the portal's environment variables.
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
    """Returns the environment variables that mark the processes of the service `name`.

    They include this supervisor's pid.
    """
    return {"FAIRLOT_SERVICE": name, "FAIRLOT_SUPERVISOR": str(os.getpid())}


def marked_processes(home: Home, supervisor: int | None = None) -> Iterator[int]:
    """Yields the pids of the services that belong to this data folder, and of their child processes.

    `supervisor`: a supervisor's pid, to find only its services. None means the services of all supervisors.
    """
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
    """Waits until the services of this data folder and their child processes have ended. Kills them after `patience`
    seconds.

    `supervisor`: a supervisor's pid, to wait only for its services. None means the services of all supervisors.
    """
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
    """Context manager that runs a guard process during the block.

    If this process is killed, the guard ends the services. The guard reads from a pipe, which the kernel closes when
    this process ends. At the end of the block, this function closes the pipe and waits for the guard.
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
    """Waits until the supervisor has ended or closed its end of the pipe, which is the standard input of this process.

    Then ends the supervisor's services that are still running.
    """
    sys.stdin.buffer.read()
    end_leftovers(home, GUARD_PATIENCE, supervisor)
