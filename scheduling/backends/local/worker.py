"""One worker of a gang: starts the worker's main process, and stores its output and its progress."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduling.backends import elastic_variables, opening
from scheduling.backends.local import processes, sandbox
from scheduling.backends.local.files import JobFiles
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.output import Log, Progress

MILLION = 10**6  # nanoseconds of a millisecond
CHUNK = 65536  # bytes read at once; the usual size of a pipe
FOLDERS = ("HOME", "TMPDIR", "FAIRLOT_CHECKPOINT_DIR")  # variables with folders that are created if missing
HOSTFILE = "hostfile"  # in each worker's temporary folder; only of MPI jobs
IGNORED_BY_US = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP)


UNCONFINED: sandbox.Confinement = {"uid": None, "view": None}


class CannotStart(Exception):
    """Raised when a worker could not be started. The message gives users the reason."""


class Worker:
    """The main process of one rank, with its output pipe and its log. `exit` is its wait status; None until it has
    ended."""

    def __init__(self, files: JobFiles, gang: dict[str, Any], rank: int) -> None:
        self._spec: dict[str, Any] = gang["workers"][rank]
        self._command: list[str] = self._spec.get("command", gang["command"])
        self._uid: int | None = gang.get("confinement", UNCONFINED)["uid"]
        self._files = files
        self._hostfile: str | None = gang.get("hostfile")  # absent in orders of earlier releases
        self.rank = rank
        # Only in gangs with roles: the role, and the worker's number in it.
        self.role: str = self._spec.get("role", "")
        self.index: int = self._spec.get("index", 0)
        self.environment: dict[str, str] = {}  # all variables with which the worker was started
        self.ends_job: bool = self._spec.get("ends_job", False)
        self.pid: int | None = None
        self.exit: int | None = None
        self.pipe: int | None = None
        self.log: Log | None = None
        self.progressed_at: processes.Stamp | None = None
        self.progress: Progress | None = None
        if rank == gang.get("leader", 0) and gang["progress_pattern"]:
            self.progress = Progress(gang["progress_pattern"], files.progress(rank))
        self._log_limit: int = gang["log_limit_bytes"]
        self._epoch: int = gang["epoch"]

    def start(
        self,
        shared: dict[str, str],
        namespaces: sandbox.Namespaces | None,
        unpack: Callable[[Path], None] | None = None,
    ) -> None:
        """Runs the command with the worker's own environment variables and those in `shared`. Raises CannotStart if
        this fails.

        If `unpack` is given, the command starts in the folder FAIRLOT_CODE_DIR, into which `unpack` writes the job's
        code.
        """
        self.environment = environment = self._spec["environment"] | shared
        self.log = self.open_log()
        self.pipe, output = os.pipe()
        os.set_blocking(self.pipe, False)
        if self._uid is not None:  # so that the job can reopen /dev/stdout and /dev/stderr
            os.fchown(output, self._uid, -1)
        reader, writer = os.pipe()
        us = os.getpid()
        self.pid = namespaces.fork() if namespaces is not None else os.fork()
        if self.pid == 0:
            self._become(environment, output, writer, us, namespaces=namespaces, unpack=unpack)
        os.close(output)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            problem = answer.read()  # returns when exec closes the other end, or when the child is gone
        if problem:
            raise CannotStart(problem.decode(errors="replace"))

    def open_log(self) -> Log:
        """Opens the worker's log for more output. If that fails, returns a Log without a file: the job still runs, but
        its output is lost. Ends a line that an earlier attempt left unfinished."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            with self._files.opened(self._files.logs, make=True) as logs:
                fd = opening.open_file(self._files.log(self.rank).name, flags, folder=logs)
        except OSError as error:
            return Log(None, self._log_limit, trouble=opening.why(error))
        times = LogFiles(self._files.logs).times_writer(self.rank, self._epoch)
        log = Log(fd, self._log_limit, resumes=True, times=times)
        if log.size and os.pread(fd, 1, log.size - 1) != b"\n":
            log.write(b"\n")
        return log

    def begin_attempt(self, epoch: int) -> None:
        """Says that the worker, which was frozen, goes on as the attempt `epoch`."""
        if self.log is not None:
            self.log.times.begin_attempt(epoch)

    def _become(
        self,
        environment: dict[str, str],
        output: int,
        writer: int,
        supervisor: int,
        *,
        namespaces: sandbox.Namespaces | None,
        unpack: Callable[[Path], None] | None,
    ) -> None:
        """Runs in the forked child: confines the child and executes the user's program in it. Never returns.

        - `output`: the pipe that becomes the program's standard output and standard error.
        - `writer`: the pipe through which the child reports why the program could not start.
        - `supervisor`: the pid of the supervisor. Without namespaces, the child exits if the supervisor has ended.
        - `namespaces`: the gang's namespaces, which the child joins; None if the gang has none.
        - `unpack`: writes the job's code into a folder; None if the job has no code.
        """
        try:
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            self.confine_child(namespaces, supervisor, kept=writer)
            self._enter_folders(environment)
            if unpack is not None:
                self._enter_code(unpack, Path(environment["FAIRLOT_CODE_DIR"]))
            os.execvpe(self._command[0], self._command, environment)  # noqa: S606
        except CannotStart as error:
            os.write(writer, str(error).encode())
        except BaseException as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            os.write(writer, f"{self._command[0]}: {reason}".encode())
        finally:
            os._exit(127)

    def confine_child(self, namespaces: sandbox.Namespaces | None, supervisor: int, *, kept: int) -> None:
        """Confines this process, a child that `namespaces.fork` or os.fork created, as a process of the worker.

        The process leads a new session, and has no privileges of the portal. Closes all its files except 0 to 2 and
        `kept`. `supervisor`: see `_become`.
        """
        os.setsid()
        for number in IGNORED_BY_US:
            signal.signal(number, signal.SIG_DFL)
        if namespaces is None:  # in namespaces, the helper that forked this process has done this
            sandbox.raise_oom_score()
            sandbox.prctl(sandbox.PR_SET_DUMPABLE, 0)
        os.umask(0o022)
        if namespaces is not None:
            namespaces.enter()
        sandbox.drop_privileges(self._uid)
        if namespaces is None:  # processes in namespaces end with their supervisor in any case
            # Comes after the change of user, which would undo it.
            sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(125)  # the supervisor ended before the prctl above
        os.closerange(3, kept)  # Fairlot's files close on exec; this closes what a library left open
        os.closerange(kept + 1, sandbox.MOST_FILES)

    @property
    def folder(self) -> str:
        """Returns the path of the worker's working folder."""
        folder: str = self._spec["folder"]
        return folder

    def _enter_folders(self, environment: dict[str, str]) -> None:
        """Creates the worker's folders and changes to its work folder. Raises CannotStart.

        Runs as the job's user, because only this user may write there.
        """
        try:
            for folder in (self._spec["folder"], *(environment[name] for name in FOLDERS)):
                Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._hostfile is not None:
                Path(environment["FAIRLOT_HOSTFILE"]).write_text(self._hostfile)
                if script := environment.get("FAIRLOT_HOST_DISCOVERY"):
                    Path(script).write_text(elastic_variables.SCRIPT)
                    Path(script).chmod(0o755)
            os.chdir(self._spec["folder"])
        except OSError as error:
            raise CannotStart(_unusable(error)) from None

    def _enter_code(self, unpack: Callable[[Path], None], folder: Path) -> None:
        """Unpacks the job's code into `folder` and changes to it. Raises CannotStart.

        Runs as the job's user, so links that the job left there lead nowhere new.
        """
        try:
            unpack(folder)
            os.chdir(folder)
        except OSError as error:
            raise CannotStart(
                f"the job's code cannot be unpacked: {error.filename}: {error.strerror}"
            ) from None

    def pump(self) -> bool:
        """Copies one piece of output from the pipe to the log. Returns whether the pipe may contain more now."""
        if self.pipe is None or self.log is None:
            return False
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.pipe)
            self.pipe = None
            return False
        self.log.write(data, [(0, time.time_ns() // MILLION)])
        if self.progress is not None and self.progress.feed(data):
            self.progressed_at = processes.stamp()
        return True

    def read_progress_file(self) -> None:
        if self.progress is not None and self.progress.read_file():
            self.progressed_at = processes.stamp()

    def close(self) -> None:
        """Stores the output that is still in the pipe, reads the progress file a last time, and closes the pipe and the
        log."""
        while self.pump():
            continue
        if self.pipe is not None:  # a process outside the job still holds the writing end
            os.close(self.pipe)
            self.pipe = None
        if self.progress is not None and self.progress.finish():
            self.progressed_at = processes.stamp()
        self.read_progress_file()
        if self.log is not None:
            self.log.close()
            self.log = None

    @property
    def name(self) -> str:
        """Returns the worker's name in messages for users."""
        return f"worker {self.rank} ({self.role} {self.index})" if self.role else f"worker {self.rank}"

    def has_variable(self, name: str) -> bool:
        """Returns whether the job sets this environment variable for the worker."""
        return name in self._spec["environment"]

    def how_it_ended(self, oom_kills: int) -> str:
        """Describes for users how the worker's process ended.

        `oom_kills` is the number of processes that the kernel killed for lack of memory during the worker's run.
        """
        if self.exit is None:
            return "did not end"
        code = os.waitstatus_to_exitcode(self.exit)
        if code >= 0:
            hint = f" ({signal_name(code - 128)}, as shells report it)" if signal_name(code - 128) else ""
            return f"exited with code {code}{hint}"
        was_killed = f"was killed by {signal_name(-code) or f'signal {-code}'}"
        if -code == signal.SIGKILL:
            if oom_kills:
                return f"{was_killed}, because the machine ran out of memory"
            return f"{was_killed}, but not by Fairlot; the program may have used too much memory"
        return was_killed


def _unusable(error: OSError) -> str:
    return f"the job's folder cannot be used: {error.filename}: {error.strerror}"


def exit_code(status: int) -> int:
    """Converts a wait status to an exit code as shells report it: the exit code, or 128 plus the signal's number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in signal.valid_signals() and number > 0 else ""
