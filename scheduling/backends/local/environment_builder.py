"""The program that installs the packages of a job's requirements, as a child of the job's supervisor.

One process at a time builds an environment; the others wait for its lock. The installation runs like a job of the
team: as its user, in separate namespaces, and it sees no files of any job. It opens no GPU. When none of its
processes is left, the packages become the portal's and the environment appears under its name, complete.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import time
from pathlib import Path
from typing import Any

from scheduling.backends import opening
from scheduling.backends.local import environments, processes, sandbox
from scheduling.backends.local.files import JobFiles, try_lock
from scheduling.backends.local.worker import UNCONFINED, CannotStart, Worker
from scheduling.backends.opening import read_json

TAIL = 3000  # bytes of pip's output that waiting jobs get if it fails
LIST = "requirements.txt"
# pip installs into a folder of its own, so that the packages of the interpreter need not be writable.
PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
       "--progress-bar", "off", "--root-user-action", "ignore")  # fmt: skip


class Failed(Exception):
    """Raised when the requirements could not be installed. The message gives users the reason."""


class Builder:
    """Makes one environment for one attempt of a job. `order` has the keys that `Supervisor` writes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.place = Path(order["folder"])
        self.building = self.place / environments.BUILDING
        self.confinement: sandbox.Confinement = order.get("confinement") or UNCONFINED
        self.began = processes.stamp()
        self.files = JobFiles(Path(order["root"]), order["job_id"])
        work = self.building / "work"
        command = [
            order["python"],
            *PIP,
            "--target",
            str(work / environments.PACKAGES),
            "-r",
            str(work / LIST),
        ]
        self.worker = Worker(
            self.files,
            {
                "workers": [{"environment": self._environment(), "folder": str(work)}],
                "command": command,
                "confinement": self.confinement,
                "progress_pattern": "",  # nothing that pip prints is progress of the job
                "log_limit_bytes": order["log_limit_bytes"],
                "epoch": order["epoch"],
            },
            0,
        )

    def run(self) -> dict[str, Any]:
        """Makes the environment, or waits until another process has made it. Returns what the supervisor must know:
        `made`, the seconds that this took; None if the environment was there.

        Raises Failed, with a message for users, and OSError.
        """
        sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.order["supervisor"]:
            os._exit(125)  # the supervisor ended before the prctl above
        sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
        with opening.folder(self.place.parent, self.place.name) as folder:
            lock = opening.open_file(environments.BUILD_LOCK, os.O_RDWR | os.O_CREAT, folder=folder)
        if not try_lock(lock):
            self._note("waiting for another job that installs the same requirements")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._fail_as_other()
        if environments.is_ready(self.place):
            return {"made": None}
        self._note("installing the requirements")
        begin = time.monotonic()
        environments.clear(self.place)
        self._install()
        seconds = round(time.monotonic() - begin, 1)
        try:
            environments.publish(
                self.place, {"seconds": seconds, "made_at": processes.stamp()}, self.confinement["uid"]
            )
        except environments.Unsuitable as error:
            raise Failed(f"the installed packages cannot be shared ({error})") from None
        environments.clear(self.place)
        self._note(f"the requirements are installed ({seconds:g} s)")
        environments.evict(self.place.parent, self.order["limit_bytes"])
        return {"made": seconds}

    def _install(self) -> None:
        work = self.building / "work"
        # All of it is made before the team gets the folders: later, its other jobs could put links in the way of this
        # process, which may be root.
        self.building.mkdir(mode=0o700)
        work.mkdir(mode=0o700)
        (work / LIST).write_text(self.order["requirements"], encoding="utf-8")
        (work / LIST).chmod(0o644)
        (work / environments.PACKAGES).mkdir(mode=0o755)  # for requirements that name nothing
        sandbox.prepare_folders(self.building, self.confinement["uid"])
        view = self.confinement["view"]
        namespaces = sandbox.Namespaces(view) if view is not None else None
        try:
            self.worker.start({}, namespaces)
        except CannotStart as error:
            raise Failed(str(error)) from None
        status = self._wait()
        self._end_all(namespaces)
        self.worker.close()
        if status != 0:
            self._note("the requirements could not be installed; pip says why above")
            self._record_failure()
            raise Failed("the requirements could not be installed; the log has pip's reason")

    def _wait(self) -> int:
        """Copies the installation's output to the job's log until its main process ends. Returns its exit code."""
        pid, pipe = self.worker.pid or 0, self.worker.pipe
        with selectors.DefaultSelector() as selector, opening.opened(os.pidfd_open(pid)) as ended:
            selector.register(ended, selectors.EVENT_READ)
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
            while not any(key.fd == ended for key, _ in selector.select()):
                while self.worker.pump():
                    continue
                if self.worker.pipe is None and pipe is not None and pipe in selector.get_map():
                    selector.unregister(pipe)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _end_all(self, namespaces: sandbox.Namespaces | None) -> None:
        """Kills what the installation left running, and returns when no process of it exists."""
        if namespaces is not None:
            namespaces.end()
        while True:
            processes.kill(processes.descendants(os.getpid()))
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _record_failure(self) -> None:
        with (
            self.files.opened(self.files.logs) as logs,
            opening.opened(opening.open_file(self.files.log(0).name, os.O_RDONLY, folder=logs)) as log,
        ):
            size = os.fstat(log).st_size
            tail = os.pread(log, TAIL, max(0, size - TAIL))
        lines = (
            tail.decode(errors="replace").partition("\n")[2] if size > TAIL else tail.decode(errors="replace")
        )
        about = {"at": processes.stamp(), "lines": lines}
        with opening.folder(self.place.parent, self.place.name) as folder:
            opening.replace_file(environments.FAILED, json.dumps(about).encode(), folder=folder)

    def _fail_as_other(self) -> None:
        """Raises Failed if the installation for which this process waited has failed. Installing the same again would
        only take as long."""
        found = read_json(self.place / environments.FAILED)
        if found is None or processes.age(tuple(found["at"])) > processes.age(self.began):
            return
        self._note("the same requirements could not be installed for another job. The end of its log:")
        self._note(found["lines"], prefix="")
        raise Failed("the requirements could not be installed for another job; the log has pip's reason")

    def _note(self, text: str, *, prefix: str = "Fairlot: ") -> None:
        log = self.worker.open_log()
        log.write(f"{prefix}{text.rstrip()}\n".encode())
        log.release()

    def _environment(self) -> dict[str, str]:
        home = self.building / "home"
        return {
            **self.order["variables"],
            "PATH": self.order["path"],
            "HOME": str(home),
            "TMPDIR": str(self.building / "tmp" / "pip"),
            "FAIRLOT_CHECKPOINT_DIR": str(self.building / "checkpoint"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            processes.MARKER: self.order["marker"],
        }


def build(order: dict[str, Any]) -> dict[str, Any]:
    """Makes the environment that `order` describes. Returns what the supervisor must know: `made`, or `failed` with the
    reason that users get, or `broken` with a reason that is not the user's."""
    try:
        return Builder(order).run()
    except Failed as error:
        return {"failed": str(error)}
    except (OSError, ValueError) as error:
        return {"broken": f"the environment with the requirements cannot be made: {sandbox.in_words(error)}"}
