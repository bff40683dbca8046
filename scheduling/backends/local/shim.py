"""The program of the supervisor, a small process per gang that outlives the process that started it.

    python -I shim.py check                    probes whether a gang could run here: a Question (sandbox.py) on
                                               standard input, the Findings on standard output
    python -I shim.py start ROOT JOB LOCK      detaches and runs the job's newest gang
    python -I shim.py go-on ROOT JOB LOCK      runs a newer gang without detaching: a supervisor whose gang has
                                               ended replaces itself with this command
    python -I shim.py build                    installs requirements (environment_builder.py): an order on standard
                                               input, the result on standard output; a child of the supervisor

LOCK is the file descriptor of the run lock. The process that starts the supervisor takes the lock. The supervisor holds
it until no gang is left to run. Two supervisors of one job can therefore never run at the same time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from math import inf
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # python -I started this file by its path, so it must find the package itself
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scheduling.backends.local import processes, sandbox
from scheduling.backends.local.files import JobFiles, read_json, write_json
from scheduling.backends.local.supervisor import Supervisor


def detach() -> None:
    """Detaches this process by a fork from the starter (the process that started it).

    The parent process exits, so that the starter stops waiting for it. The child process continues.
    """
    if os.fork() > 0:
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the starter's thread may have blocked some signals


def claim(files: JobFiles, run_lock: int) -> dict[str, Any] | None:
    """Records this process as the supervisor of the newest gang and returns that gang. If no gang has to run, releases
    the run lock and returns None."""
    # No newer gang can go unnoticed, because the process that orders a gang also holds the orders lock. If the run lock
    # is free, that process starts a supervisor. Otherwise the running supervisor finds the gang here or in `is_over`.
    with files.orders_lock(inf):
        if (found := _ordered(files)) is None:
            os.close(run_lock)
            return None
        gang, status = found
        status["supervisor"] = processes.own_identity()
        write_json(files.status(gang["epoch"]), status)
    return gang


def is_over(files: JobFiles, run_lock: int) -> bool:
    """Returns whether the supervisor may end because no newer gang has to run. If so, releases the run lock."""
    try:
        with files.orders_lock(inf):
            if _ordered(files) is not None:
                return False
            os.close(run_lock)
    except FileNotFoundError:  # the job's folder was removed together with its lock
        return True
    return True


def _ordered(files: JobFiles) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns the newest gang and its status, as a pair. Returns None if a supervisor has already claimed the gang or
    no gang has to run."""
    gang = read_json(files.gang)
    status = read_json(files.status(gang["epoch"])) if gang else None
    if gang is None or status is None or status["phase"] != "starting" or status["supervisor"]:
        return None
    return gang, status


def main(mode: str, root: str, job_id: str, lock: str) -> None:
    run_lock = int(lock)
    os.set_inheritable(run_lock, False)  # processes of the job must not inherit it
    if mode == "start":
        detach()
    files = JobFiles(Path(root), int(job_id))
    gang = claim(files, run_lock)
    if gang is None:
        return
    Supervisor(files, gang).run()
    if is_over(files, run_lock):
        return
    # A newer gang was ordered meanwhile. The program executes itself again, so that no state of this run remains.
    os.set_inheritable(run_lock, True)
    os.execv(sys.executable, [sys.executable, "-I", __file__, "go-on", root, job_id, lock])  # noqa: S606


def check() -> None:
    """Probes whether a gang could run on this machine. Reads a Question (sandbox.py) from standard input and prints the
    Findings as JSON.

    If the probe fails, prints the reason to standard error. The exit code is then sandbox.REFUSED if the machine does
    not allow the isolation, or 1 if the probe gave no answer.
    """
    try:
        json.dump(sandbox.probe(json.load(sys.stdin)), sys.stdout)
    except OSError as error:
        sys.stderr.write(f"{sandbox.in_words(error)}\n")
        sys.exit(1 if error.errno in sandbox.PASSING else sandbox.REFUSED)


def build() -> None:
    """Installs requirements. Reads the order (environment_builder.py) from standard input and prints the result."""
    # Imported here, because few supervisors install anything.
    from scheduling.backends.local import environment_builder  # noqa: PLC0415

    json.dump(environment_builder.build(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check()
    elif sys.argv[1] == "build":
        build()
    else:
        main(*sys.argv[1:])
