"""The supervisor of one gang: a small program that outlives whoever started it.

    python -I shim.py check                 whether it could run here
    python -I shim.py <root> <job> <lock>   runs the job's gang; <lock> is the fd of the held run lock

One supervisor serves all workers of a gang, so that starting, failing and ending are one decision in
one place and need no talk between processes. It is the subreaper of everything below it: whatever the
job forks and however it detaches, it stays in this process tree until it is gone, and only when the
kernel says that no child is left does the supervisor report the end. Orders are files (files.py), read
when poked and every second; they are absolute and fenced by the epoch.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by path and isolated, so that the path to the package is missing
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scheduling.backends.local import processes
from scheduling.backends.local.files import JobFiles, write_json
from scheduling.backends.local.worker import CannotStart, Worker

BEAT_SECONDS = 1.0
SOON_SECONDS = 0.02  # between looks at processes that are about to stop or to die
LEFTOVER_GRACE_SECONDS = 2.0  # for what a job forked and left behind
MASTER_PORTS = range(20000, 30000)  # below the ports that the kernel gives to outgoing connections


class Supervisor:
    """Runs one gang from its start to the moment when nothing is left of it."""

    def __init__(self, files: JobFiles, gang: dict[str, Any]) -> None:
        self.files = files
        self.gang = gang
        self.workers = [Worker(files, gang, rank) for rank in range(len(gang["workers"]))]
        self.marker = f"{gang['job_id']}-{gang['token']}"
        self.selector = selectors.DefaultSelector()
        # The verdict is what decides the end: ("failed", code, message); the first one stands.
        self.verdict: tuple[str, int | None, str] | None = None
        self.deadline: float | None = None  # when to kill; None: nothing is being ended
        self.freezing = False
        self.next_beat = 0.0
        self.told_to_end = False
        self.oom_kills = processes.oom_kills()
        self.status: dict[str, Any] = {
            "job_id": gang["job_id"],
            "epoch": gang["epoch"],
            "token": gang["token"],
            "marker": self.marker,
            "supervisor": [os.getpid(), _own_start()],
            "phase": "starting",
            "ordered_at": gang["ordered_at"],
        }

    # --- reports -------------------------------------------------------------------------------

    def report(self, **changes: Any) -> None:
        self.status |= changes | self._steps()
        write_json(self.files.status(self.status["epoch"]), self.status)

    def beat(self) -> None:
        self.next_beat = time.monotonic() + BEAT_SECONDS
        self.workers[0].read_progress_file()
        alive = [(process.pid, process.start) for process in processes.descendants(os.getpid())]
        beat = {"epoch": self.status["epoch"], "at": processes.stamp(), "processes": alive[:4096]}
        write_json(self.files.beat, beat | self._steps(), durable=False)

    def _steps(self) -> dict[str, Any]:
        first = self.workers[0]
        if first.progress is None or first.progressed_at is None:
            return {}
        return {"steps": first.progress.steps, "steps_at": first.progressed_at}

    # --- the life of a gang --------------------------------------------------------------------

    def run(self) -> None:
        self._listen()
        self.report()
        self.beat()
        self._start_workers()
        while self._reap():
            self._obey()
            self._advance()
            self._wait()
        for worker in self.workers:
            worker.close()
        self._report_end()

    def _listen(self) -> None:
        """Signals and pokes end the waiting."""
        fifo = os.open(self.files.folder / "poke", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        waked, wake = os.pipe()
        for fd in (fifo, waked, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_terminate)
        self.selector.register(fifo, selectors.EVENT_READ)
        self.selector.register(waked, selectors.EVENT_READ)

    def _on_terminate(self, *_: object) -> None:
        self.told_to_end = True

    def _start_workers(self) -> None:
        try:
            with _master_port(self.files.root) as port:
                shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), processes.MARKER: self.marker}
                self.port = port.lock
                for worker in self.workers:
                    worker.start(shared)
                    self.selector.register(worker.pipe or 0, selectors.EVENT_READ, worker)
        except (CannotStart, OSError) as error:
            who = "" if len(self.workers) == 1 else f"worker {worker.rank} "
            self._end(("start_failed", None, f"{who}could not be started: {error}"), grace=0)
        else:
            self.report(phase="running", running_at=processes.stamp())

    def _wait(self) -> None:
        timeout = max(0.0, self.next_beat - time.monotonic())
        if self.freezing or self.deadline is not None:
            timeout = min(timeout, SOON_SECONDS)
        for key, _ in self.selector.select(timeout):
            if not isinstance(key.data, Worker):
                _drain(key.fd)
                self.next_orders = True
                continue
            key.data.pump()
            if key.data.pipe is None:
                self.selector.unregister(key.fd)

    def _reap(self) -> bool:
        """Collects what ended; False when nothing of the job is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                for worker in self.workers:
                    if worker.pid == pid:
                        worker.exit = status
                        self._judge(worker)
        except ChildProcessError:
            return False
