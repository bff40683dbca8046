"""The supervisor's program: a small process per gang that outlives whoever started it.

    python -I shim.py check                    whether it could run here: a Question (sandbox.py) on standard
                                               input, the Findings on standard output
    python -I shim.py start ROOT JOB LOCK      detaches and runs the job's newest gang
    python -I shim.py go-on ROOT JOB LOCK      the same without detaching: its own successor

LOCK is the file descriptor of the run lock, taken by the starter and held until nothing is left to run,
so there is no moment in which two supervisors of one job could both believe to be the one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from math import inf
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by path and isolated from user settings, so the package must be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scheduling.backends.local import processes, sandbox
from scheduling.backends.local.files import JobFiles, read_json, write_json
from scheduling.backends.local.supervisor import Supervisor


def detach() -> None:
    """Leaves the starter: its child ends at once, and we are nobody's but init's."""
    if os.fork() > 0:
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a starter's thread may have blocked some


def claim(files: JobFiles, run_lock: int) -> dict[str, Any] | None:
    """Takes the newest gang if it is still to be run; else gives the run lock back and returns None.

    Both happen under the orders lock: a starter either finds us holding the run lock with this question
    still ahead of us, or finds it free.
    """
    with files.orders_lock(inf):
        if (found := _ordered(files)) is None:
            os.close(run_lock)
            return None
        gang, status = found
        status["supervisor"] = processes.own_name()
        write_json(files.status(gang["epoch"]), status)
    return gang


def is_over(files: JobFiles, run_lock: int) -> bool:
    """Whether no newer gang is to be run; gives the run lock back then, as `claim` does."""
    try:
        with files.orders_lock(inf):
            if _ordered(files) is not None:
                return False
            os.close(run_lock)
    except FileNotFoundError:  # the job's folder was removed, and its lock with it
        return True
    return True


def _ordered(files: JobFiles) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The newest gang and its status if no supervisor has it yet."""
    gang = read_json(files.gang)
    status = read_json(files.status(gang["epoch"])) if gang else None
    if gang is None or status is None or status["phase"] != "starting" or status["supervisor"]:
        return None
    return gang, status


def main(mode: str, root: str, job_id: str, lock: str) -> None:
    run_lock = int(lock)
    os.set_inheritable(run_lock, False)  # no job may hold it
    if mode == "start":
        detach()
    files = JobFiles(Path(root), int(job_id))
    gang = claim(files, run_lock)
    if gang is None:
        return
    Supervisor(files, gang).run()
    if is_over(files, run_lock):
        return
    # A newer gang was ordered meanwhile. A fresh start of this program owes nothing to this run.
    os.set_inheritable(run_lock, True)
    os.execv(sys.executable, [sys.executable, "-I", __file__, "go-on", root, job_id, lock])  # noqa: S606


def check() -> None:
    """Prints what the probe finds; ends with a line on standard error when it fails."""
    try:
        json.dump(sandbox.probe(json.load(sys.stdin)), sys.stdout)
    except OSError as error:
        sys.stderr.write(f"{sandbox.in_words(error)}\n")
        sys.exit(1 if error.errno in sandbox.PASSING else sandbox.REFUSED)


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check()
    else:
        main(*sys.argv[1:])
