"""Runs one gang from its start until none of its processes is left.

One supervisor serves all workers of a gang, so that starting, failing and ending are decided in one place, without
messages between processes. The supervisor is a subreaper: every process of the job stays its descendant, even if the
process forks or detaches. If the gang has namespaces (sandbox.py), detached processes become children of the
namespaces' first process, which runs Fairlot's code. The supervisor reports the gang's end only when no process of the
job is left.

Orders are files (files.py). The supervisor reads them every second, and immediately when a byte arrives in the FIFO.
Orders are idempotent and carry the epoch.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduling.backends import elastic_variables, opening, role_variables
from scheduling.backends.local import checkpoints, processes, removal, sandbox, secret_files
from scheduling.backends.local.files import Busy, JobFiles, read_json, try_lock, write_json
from scheduling.backends.local.pending_work import PendingWork
from scheduling.backends.local.probe import Answer, Probe
from scheduling.backends.local.shells import NoShell, Shells
from scheduling.backends.local.worker import UNCONFINED, CannotStart, Worker, exit_code

if TYPE_CHECKING:
    from scheduling.backends.local.installation import Installation

logger = logging.getLogger(__name__)
BEAT_SECONDS = 1.0
MOST_BEATS_WITHOUT_ROOT = 5  # heartbeats during which the folder of all jobs may be missing
SOON_SECONDS = 0.02  # between two checks of processes that are about to stop or to end
LEFTOVER_GRACE_SECONDS = 2.0  # for processes that a program forked and left behind at its end
MASTER_PORTS = range(20_000, 30_000)  # below the ports that the kernel gives to outgoing connections


class Supervisor:
    """The supervisor of one gang: the state of the gang's run, and the event loop that drives it."""

    def __init__(self, files: JobFiles, gang: dict[str, Any]) -> None:
        self.files = files
        self.gang = gang
        self.workers = [Worker(files, gang, rank) for rank in range(len(gang["workers"]))]
        self.selector = selectors.DefaultSelector()
        self.shells = Shells(files, self.selector)
        # Whether the gang's processes have no rights of the portal. Kept when the gang continues under a newer lease.
        self.kept_apart: bool = gang.get("kept_apart", False)  # absent in orders of earlier releases
        self.port_locks: list[int] = []
        self.namespaces: sandbox.Namespaces | None = None
        self.installation: Installation | None = None  # while it runs, no worker has started
        self.shared: dict[str, str] = {}  # environment variables of all workers
        self.probe: Probe | None = None
        self.reported_answer = Answer(None, "")  # as last reported
        # How and why the gang ends: (end, exit code, message). The first verdict is final; None: no reason to end yet.
        self.verdict: tuple[str, int | None, str] | None = None
        self.kill_at = inf  # monotonic time of SIGKILL
        self.killed = False
        self.freezing: PendingWork | None = None
        self.seen_stopped = 0  # consecutive checks at which every process was stopped
        # Whether this process got SIGTERM, for example because the machine shuts down.
        self.terminated = False
        self.orders_due = True
        self.unreported = False
        self.beats_without_root = 0  # consecutive heartbeats without the folder of all jobs
        self.last_warning = ""
        self.next_beat = 0.0
        self.oom_kills = processes.oom_kills()
        self.status: dict[str, Any] = {
            "job_id": gang["job_id"],
            "epoch": gang["epoch"],
            "token": gang["token"],
            "marker": gang["token"],
            "supervisor": processes.own_identity(),
            "phase": "starting",
            "ordered_at": gang["ordered_at"],
        }

    @property
    def leader(self) -> Worker:
        """Returns the worker whose progress counts. Earlier releases did not write this key."""
        rank: int = self.gang.get("leader", 0)
        return self.workers[rank]

    def run(self) -> None:
        sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
        self._listen()
        self._report()
        self._beat()
        self._begin()
        while self._reap():
            if self.orders_due:
                self._follow_orders()
            self._advance()
            self._wait()
        self.shells.close()
        for worker in self.workers:
            worker.close()
        secret_files.delete(self.files, self.status["epoch"])
        self._report_end()
        self._clear_temporary()

    def _move_old_temporary(self) -> None:
        """Renames the temporary folder of an earlier attempt, so that this attempt begins with an empty one.

        Such a folder is left if the supervisor of the earlier attempt was killed.
        """
        with self.files.opened(self.files.folder) as folder, suppress(FileNotFoundError):
            opening.put_aside("tmp", folder=folder)

    def _clear_temporary(self) -> None:
        """Deletes the workers' temporary folder. If this takes too long, the next attempt deletes the rest when it
        ends."""
        try:
            with self.files.opened(self.files.folder) as folder:
                removal.clear("tmp", folder)
        except OSError as error:
            logger.warning("the temporary folder stays for now: %s", opening.why(error))

    # --- reports -------------------------------------------------------------------------------

    def _report(self, **changes: Any) -> None:
        """Applies `changes` to the report and writes it. If writing fails, a later heartbeat tries again.

        A failure does not end the gang, because a full disk must not end a job.
        """
        self.status |= changes | self._steps()
        if troubles := self._log_troubles():
            self.status["log_troubles"] = troubles
        try:
            write_json(self.files.status(self.status["epoch"]), self.status)
            self.unreported = False
        except OSError:
            self.unreported = True

    def _beat(self) -> None:
        self.next_beat = time.monotonic() + BEAT_SECONDS
        self.orders_due = True
        self.beats_without_root = self.beats_without_root + 1 if self._is_root_missing() else 0
        if self.beats_without_root >= MOST_BEATS_WITHOUT_ROOT:
            # Without this folder, no process can give orders or read reports any more.
            self._end(
                ("lost", None, "the folder that contains the folders of all jobs was removed"),
                self.gang["grace_seconds"],
            )
        if self.unreported or self._log_troubles() != self.status.get("log_troubles", {}):
            self._report()
        self.leader.read_progress_file()
        below = processes.descendants(os.getpid())
        ours = os.times()  # also has the CPU time of orphans, which this process reaps
        cpu, memory = processes.usage(below)
        beat = {
            "epoch": self.status["epoch"],
            "at": processes.stamp(),
            "processes": [(process.pid, process.start) for process in below if process.pid != self._init],
            "cpu": cpu + ours.children_user + ours.children_system,
            "memory": memory,
        }
        with suppress(OSError):  # then the last heartbeat on disk grows old, which readers notice
            write_json(self.files.beat, beat | self._steps(), durable=False)

    def _is_root_missing(self) -> bool:
        try:
            self.files.root.stat()
        except OSError as error:  # only FileNotFoundError means that the folder is gone
            return isinstance(error, FileNotFoundError)
        return False

    def _beat_if_due(self) -> None:
        if time.monotonic() >= self.next_beat:
            self._beat()

    def _log_troubles(self) -> dict[str, tuple[str, processes.Stamp]]:
        """Returns, by rank, the problems with writing the workers' logs.

        Each problem is a pair: the reason, and the time when the problem was noticed. A problem stays in the result
        even if the log can be written again.
        """
        known: dict[str, tuple[str, processes.Stamp]] = self.status.get("log_troubles", {})
        found = {str(worker.rank): worker.log.trouble for worker in self.workers if worker.log is not None}
        return known | {
            rank: (trouble, processes.stamp())
            for rank, trouble in found.items()
            if trouble and rank not in known
        }

    def _steps(self) -> dict[str, Any]:
        leader = self.leader
        if leader.progress is None or leader.progressed_at is None:
            return {}
        return {"steps": leader.progress.steps, "steps_at": leader.progressed_at}

    def _report_end(self) -> None:
        end, code, message = self.verdict or ("lost", None, "no worker process was running any more")
        if self.killed and end in {"stopped", "lost"}:
            message += "; processes that did not end within the grace period were killed"
        self._report(phase="ended", ended_at=processes.stamp(), end=end, exit_code=code, message=message)
        while self.unreported and self.beats_without_root < MOST_BEATS_WITHOUT_ROOT:
            time.sleep(BEAT_SECONDS)
            self._beat()

    # --- start ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Registers signals and the FIFO as events that wake the event loop."""
        try:
            self.selector.register(self.files.open_poke(os.O_RDWR), selectors.EVENT_READ)
        except OSError as error:  # then orders are only read at each heartbeat
            logger.warning("nobody can poke this supervisor: %s", opening.why(error))
        waked, wake = os.pipe()
        os.set_blocking(waked, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_terminate)
        self.selector.register(waked, selectors.EVENT_READ)

    def _on_terminate(self, *_: object) -> None:
        self.terminated = self.orders_due = True

    def _begin(self) -> None:
        """Starts the workers or, if their requirements are not installed yet, the installation."""
        try:
            self._move_old_temporary()
            port = self._reserve_port()
            self.shared = {
                **secret_files.take_variables(self.files, self.status["epoch"]),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **(elastic_variables.endpoint("127.0.0.1", port) if self.gang.get("is_elastic") else {}),
                processes.MARKER: self.status["marker"],
                **self._endpoint(),
            }
            if self.gang.get("packages"):  # absent in orders of earlier releases
                # Imported here, because most jobs start without it, and sooner.
                from scheduling.backends.local.installation import Installation  # noqa: PLC0415

                self.installation = Installation(self.files, self.gang, self.shared)
        except OSError as error:
            self._end(("start_failed", None, str(error)), grace=0)
            return
        if self.installation is None or self.installation.pid is None:
            self._start_workers()

    def _start_workers(self) -> None:
        try:
            if self.installation is not None:
                self.status["packages"] = self.installation.use(self.gang)
                self.installation = None
            self._confine()
            unpack = self._unpacking_code()
            self.shared |= self._resume_from()
            of_roles = self._of_roles()
        except OSError as error:
            self._end(("start_failed", None, str(error)), grace=0)
            return
        if all(self._has_started(each, self.shared | of_roles(each), unpack) for each in self.workers):
            self._report(phase="running", running_at=processes.stamp())
            self._start_probe()

    def _of_roles(self) -> Callable[[Worker], dict[str, str]]:
        """Reserves a port for each worker if the gang has roles. Returns a function that returns the environment
        variables about a worker's role."""
        if not self.workers[0].role:
            return lambda worker: {}
        addresses: dict[str, list[str]] = {}
        for worker in self.workers:
            addresses.setdefault(worker.role, []).append(f"127.0.0.1:{self._reserve_port()}")

        def variables(worker: Worker) -> dict[str, str]:
            role = worker.role, worker.index, addresses
            said = {} if worker.has_variable("TF_CONFIG") else {"TF_CONFIG": role_variables.tf_config(*role)}
            return said | role_variables.variables(*role)

        return variables

    def _unpacking_code(self) -> Callable[[Path], None] | None:
        """Reads the job's code, and returns a function that writes it into a folder; None if the job has no code.

        Raises OSError with a message for users.
        """
        if not self.gang.get("code"):  # earlier releases did not write this key
            return None
        # Imported here, because most jobs start without tar files, and sooner.
        from scheduling.backends.local import code_files  # noqa: PLC0415

        return partial(code_files.unpack, code_files.read(self.files, self.gang["code"]))

    def _confine(self) -> None:
        """Creates the folders and namespaces of the gang's confinement. Raises OSError with a message for users."""
        confinement: sandbox.Confinement = self.gang.get("confinement", UNCONFINED)
        try:
            sandbox.prepare_folders(self.files.folder, confinement["uid"], go_on=self._beat_if_due)
        except OSError as error:
            words = f"the job's folder cannot be used: {error.filename}: {error.strerror}"
            raise OSError(words) from None
        if confinement["view"] is not None:
            try:
                self.namespaces = sandbox.Namespaces(confinement["view"])
            except OSError as error:
                raise OSError(f"the job's processes cannot be isolated: {error.strerror}") from None
            self.selector.register(self.namespaces.emptied, selectors.EVENT_READ)

    def _has_started(
        self, worker: Worker, shared: dict[str, str], unpack: Callable[[Path], None] | None
    ) -> bool:
        """Starts the worker with the additional environment variables in `shared` and with the code that `unpack`
        writes. Returns True.

        If the start fails, ends the gang and returns False.
        """
        self._beat_if_due()
        try:
            worker.start(shared, self.namespaces, unpack)
        except (CannotStart, OSError) as error:
            of_worker = f"{worker.name}: " if len(self.workers) > 1 else ""
            self._end(("start_failed", None, f"{of_worker}{error}"), grace=0)
            return False
        if worker.pipe is not None:
            self.selector.register(worker.pipe, selectors.EVENT_READ, worker)
        return True

    def _reserve_port(self) -> int:
        lock, port = reserve_port(self.files)
        self.port_locks.append(lock)
        return port

    def _endpoint(self) -> dict[str, str]:
        """Reserves a port if the gang has an endpoint, and returns the environment variables that contain the port.

        Returns an empty dictionary if the gang has no endpoint. The supervisor chooses the port, because several gangs
        may have asked for the same one.
        """
        if not self.gang.get("endpoint"):
            return {}
        port = self._reserve_port()
        self.status["address"] = f"127.0.0.1:{port}"
        return {"PORT": str(port), "FAIRLOT_PORT": str(port)}

    def _resume_from(self) -> dict[str, str]:
        """Finds the checkpoint from which the gang resumes, and returns the environment variable that names it.

        Returns an empty dictionary if the job names no checkpoints.
        """
        pattern = self.gang.get("checkpoint")  # absent in orders of earlier releases
        if not pattern:
            return {}
        self.status["resumed_from"] = name = checkpoints.newest(self.files, pattern)
        return {"FAIRLOT_RESUME_FROM": str(self.files.checkpoints / name) if name else ""}

    def _start_probe(self) -> None:
        if "address" in self.status:
            port = int(self.status["address"].rpartition(":")[2])
            self.probe = Probe(port=port, changed=self.files.poke, **self.gang["endpoint"])
            self.probe.start()

    def _stop_probe(self) -> None:
        if self.probe is not None:
            self.probe.stop()
            self.probe = None
            self.reported_answer = Answer(None, "")
            self.status |= {"ready_at": None, "why_not_ready": ""}

    # --- event loop ------------------------------------------------------------------------------

    def _wait(self) -> None:
        now = time.monotonic()
        until = min(self.next_beat, self.kill_at)
        if self.freezing or self.orders_due or self.kill_at <= now:
            until = min(self.next_beat, now + SOON_SECONDS)
        for key, _ in self.selector.select(max(0.0, until - now)):
            if isinstance(key.data, Worker):
                key.data.pump()
                if key.data.pipe is None:
                    self.selector.unregister(key.fd)
            elif key.data is self.shells:
                self.shells.handle(key.fileobj, self._worker_for_shell)
            else:
                os.read(key.fd, 4096)
                self.orders_due = True
        self._beat_if_due()

    def _reap(self) -> bool:
        """Reaps ended processes. If a worker is among them, handles its end. Returns False if no process of the job is
        left."""
        ended: list[Worker] = []
        left = True
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if self.installation is not None and self.installation.pid == found[0]:
                    self._judge_installation(self.installation)
                self.shells.note_end(*found)
                for worker in self.workers:
                    if worker.pid == found[0]:
                        worker.exit = found[1]
                        ended.append(worker)
        except ChildProcessError:
            left = False
        if self.namespaces is not None and left and self._has_ended():
            self.namespaces.end()  # also ends the first process of the namespaces, which is the last one left
        # When several workers end at the same time, a worker that was killed is a likelier cause than one that exited.
        for worker in sorted(ended, key=lambda worker: not os.WIFSIGNALED(worker.exit or 0)):
            self._judge(worker)
        return left

    def _judge_installation(self, installation: Installation) -> None:
        """Handles the end of the installation: starts the workers, or ends the gang if it failed."""
        if self.verdict is not None:
            return
        result = installation.result()
        if "failed" in result:
            self._end(("failed", 1, result["failed"]), grace=0)
        elif "broken" in result:
            self._end(("start_failed", None, result["broken"]), grace=0)
        else:
            self._start_workers()

    def _has_ended(self) -> bool:
        """Returns whether all workers have ended and no other process of the gang is left.

        The first process of the gang's namespaces, which runs Fairlot's code, does not count.
        """
        if any(worker.pid is not None and worker.exit is None for worker in self.workers):
            return False
        return not self._processes()

    def _processes(self) -> list[processes.Process]:
        """Returns the job's processes: all descendants of this process except the first process of the gang's
        namespaces."""
        return [each for each in processes.descendants(os.getpid()) if each.pid != self._init]

    @property
    def _init(self) -> int:
        """Returns the pid of the first process of the gang's namespaces, which runs Fairlot's code; 0 if the gang has
        no namespaces."""
        return self.namespaces.init if self.namespaces is not None else 0

    def _judge(self, worker: Worker) -> None:
        """Handles the end of a worker's main process. Ends the gang if the worker failed, or if all workers that decide
        about its end have succeeded: those whose roles end the job, or else all."""
        if self.verdict is not None or worker.exit is None:
            return
        grace = LEFTOVER_GRACE_SECONDS
        if any(other.exit is None for other in self.workers):
            grace = self.gang["grace_seconds"]
        deciding = [other for other in self.workers if other.ends_job]
        if worker.exit != 0:
            how = worker.how_it_ended(processes.oom_kills() - self.oom_kills)
            self._end(("failed", exit_code(worker.exit), self._prefix(worker) + how), grace)
        elif all(other.exit == 0 for other in deciding or self.workers):
            roles = " and ".join(dict.fromkeys(other.role for other in deciding))
            who = f"every worker of {roles}" if roles else "every worker"
            self._end(("succeeded", 0, f"{who} exited with code 0"), grace)

    def _prefix(self, worker: Worker) -> str:
        return f"{worker.name} " if len(self.workers) > 1 else ""

    def _advance(self) -> None:
        """Performs the next step of freezing or ending the gang, if one of them has begun. Also reports changes of the
        gang's readiness."""
        if self.probe is not None and (answer := self.probe.answer) != self.reported_answer:
            self.reported_answer = answer
            self._report(ready_at=self.reported_answer.ready_at, why_not_ready=self.reported_answer.trouble)
        self.shells.end_abandoned()
        if self.kill_at <= time.monotonic():
            victims = processes.descendants(os.getpid())
            processes.kill(victims)
            self.killed = self.killed or any(victim.state not in "ZX" for victim in victims)
        elif self.freezing is not None:
            awake = [each for each in self._processes() if not each.is_stopped]
            for process in awake:
                processes.send(process, signal.SIGSTOP)
            self.seen_stopped = 0 if awake else self.seen_stopped + 1
            # A stopped process cannot fork, so two checks in a row cover all processes.
            if self.seen_stopped >= 2 and self.freezing.is_over():
                self.freezing = None
                self._stop_probe()
                self._report(phase="frozen", frozen_at=processes.stamp())

    # --- orders --------------------------------------------------------------------------------

    def _follow_orders(self) -> None:
        self.orders_due = False
        if self.terminated:
            words = "the machine stopped the job's programs, for example because it is shutting down"
            self._end(("lost", None, words), self.gang["grace_seconds"])
        try:
            gang, order = read_json(self.files.gang), read_json(self.files.desired)
            if gang is not None and gang["epoch"] > self.status["epoch"]:
                self._follow_newer_lease()
            elif order is not None and order["epoch"] >= self.status["epoch"]:
                self._carry_out(order)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # orders are read again at the next heartbeat
            self._warn_once(f"Fairlot's commands to start, suspend or stop the job cannot be read: {error!r}")

    def _warn_once(self, text: str) -> None:
        """Writes a warning to supervisor.log, unless it is the same as the last warning."""
        if text != self.last_warning:
            self.last_warning = text
            logger.warning("%s", text)

    def _follow_newer_lease(self) -> None:
        """Handles the order to run a newer lease of the job.

        If the order is to resume this gang's frozen (paused) processes, and they still exist, continues under the newer
        lease. Otherwise ends the gang.
        """
        try:
            with self.files.orders_lock(0):
                gang, order = read_json(self.files.gang), read_json(self.files.desired)
                meant = (
                    gang and order and order["epoch"] == gang["epoch"] and order["verb"] in {"run", "freeze"}
                )
                if gang and meant and gang["continues"] == self.status["epoch"] and self._can_continue():
                    self._continue_as(gang)
                    return
        except Busy:
            self.orders_due = True  # another process is writing orders now
            return
        self._end(
            ("stopped", None, "stopped because a newer attempt of the job replaced this attempt"),
            self.gang["grace_seconds"],
        )

    def _can_continue(self) -> bool:
        return self.verdict is None and all(worker.exit is None for worker in self.workers)

    def _continue_as(self, gang: dict[str, Any]) -> None:
        """Resumes the frozen (paused) processes under a new epoch. `gang` describes the gang with this epoch.

        Also writes the last report of the old epoch. According to this report, the old epoch ended at the time at which
        the processes were frozen.
        """
        now = processes.stamp()
        self._report(
            phase="ended",
            end="stopped",
            exit_code=None,
            message=f"the job was suspended, and continued as attempt {gang['epoch']}",
            ended_at=self.status.get("frozen_at", now),
        )
        self.gang = gang
        self.freezing = None
        kept = {
            key: self.status[key]
            for key in ("job_id", "marker", "supervisor", "address")
            if key in self.status
        }
        self.status = kept | {key: gang[key] for key in ("epoch", "token", "ordered_at")}
        for worker in self.workers:
            worker.begin_attempt(gang["epoch"])
        self._continue_all()
        self._report(phase="running", running_at=now)
        self._start_probe()
        self._beat()

    def _carry_out(self, order: dict[str, Any]) -> None:
        verb, grace = order["verb"], order.get("grace_seconds", 0.0)
        if verb == "stop":
            self._end(("stopped", None, "stopped by Fairlot"), grace)
        elif verb == "freeze" and self.installation is not None:  # other jobs may wait for it
            self._end(("stopped", None, "stopped by Fairlot while its requirements were installed"), grace=0)
        elif verb == "freeze" and self.status["phase"] == "running" and self.verdict is None:
            self.seen_stopped = 0
            self.freezing = self.freezing or PendingWork(self.gang)

    def _end(self, verdict: tuple[str, int | None, str], grace: float) -> None:
        """Begins to end the gang: sends SIGTERM, and SIGKILL after `grace` seconds. If `grace` is 0, skips SIGTERM.

        `verdict` says how the gang ended: the end, the exit code or None, and a message for users.

        A repeated call changes nothing, except that a shorter grace period makes SIGKILL come earlier.
        """
        self.kill_at = min(self.kill_at, time.monotonic() + grace)
        if self.verdict is not None:
            return
        self.verdict = verdict
        self._stop_probe()
        self.shells.hang_up_all()  # shells ignore SIGTERM, and must not use up the grace period
        if grace > 0:
            self._signal_all(signal.SIGTERM)
        if self.freezing or self.status["phase"] == "frozen":
            self.freezing = None
            self._continue_all()  # a stopped process cannot use its grace period
            self._report(phase="running")

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._processes():
            processes.send(process, number)

    def _continue_all(self) -> None:
        """Continues stopped processes, children first: a shell would otherwise see that its command was stopped, and
        take the terminal from it."""
        for process in reversed(self._processes()):
            processes.send(process, signal.SIGCONT)

    # --- terminals -----------------------------------------------------------------------------

    def _worker_for_shell(self, rank: int, is_trusted: bool) -> tuple[Worker, sandbox.Namespaces | None]:
        """Returns the worker with this rank, and the namespaces in which a shell runs beside it.

        Raises NoShell, with a message for users, unless the worker runs and a shell would have no rights that the user
        lacks.
        """
        if not (self.kept_apart or is_trusted):
            raise NoShell(
                "This job runs with the portal's own rights, so only admins may open a terminal in it."
            )
        if self.freezing or self.status["phase"] == "frozen":
            raise NoShell("The job is suspended. A terminal can be opened when the job runs again.")
        if self.verdict is not None or self.status["phase"] != "running":
            raise NoShell("The job is not running.")
        worker = next((one for one in self.workers if one.rank == rank), None)
        if worker is None:
            raise NoShell(f"The job has no worker {rank}.")
        if worker.pid is None or worker.exit is not None:
            raise NoShell(f"Worker {rank} has ended.")
        return worker, self.namespaces


def reserve_port(files: JobFiles) -> tuple[int, int]:
    """Returns a pair: the file descriptor of a lock, and a free port on the loopback interface.

    While the lock is held, no other gang gets this port. Raises OSError if no port is free.
    """
    first = os.getpid() % len(MASTER_PORTS)
    with files.opened(files.root / ".ports", make=True) as folder:
        for port in (*MASTER_PORTS[first:], *MASTER_PORTS[:first]):
            lock = opening.open_file(str(port), os.O_RDWR | os.O_CREAT, folder=folder)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    if try_lock(lock):
                        probe.bind(("127.0.0.1", port))
                        return lock, port
                except OSError:  # another program uses the port
                    os.close(lock)
                    continue
            os.close(lock)
    raise OSError("no loopback port is free for the gang's workers")
