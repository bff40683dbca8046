"""The local backend: writes orders for the supervisors of jobs and reads their reports. It keeps its state in files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from scheduling.backends import elastic_variables, opening
from scheduling.backends.base import (
    BackendError,
    ClusterEvent,
    End,
    Endpoint,
    FileList,
    FileSizes,
    Gang,
    GangRole,
    LogChunk,
    Observation,
    ResultList,
    Sample,
    Use,
    Worker,
)
from scheduling.backends.files_to_copy import with_copy
from scheduling.backends.local import (
    accounts,
    code_files,
    devices,
    environments,
    gpus,
    inputs,
    isolation,
    job_folder,
    processes,
    removal,
    reports,
    sandbox,
    secret_files,
    terminal,
    volumes,
    watchdog,
)
from scheduling.backends.local.files import Busy, JobFiles, read_json, reports_in, write_json
from scheduling.backends.local.isolation import SHIM, HostPaths, Isolation
from scheduling.backends.local.sandbox import Bind
from scheduling.backends.local.use import UseMeter
from scheduling.backends.local.watch import renames_in
from scheduling.backends.local.worker import HOSTFILE
from scheduling.backends.logfiles import LogFiles
from scheduling.backends.results import find_results
from scheduling.backends.role_variables import hostfile_variables
from scheduling.backends.safe_folder import PlainFile
from scheduling.spec import requirements

logger = logging.getLogger(__name__)
NEVER_STARTED = "the job was stopped before it started"
KEPT_REPORTS = 3  # reports of older attempts that are kept although nothing forgot them


class LocalBackend:
    """Runs gangs as processes of this machine. Their files are in the folder `root`.

    - `environments`: maps the name of each software environment, such as `python`, to the value of PATH for the jobs
      that choose this environment.
    - `environments_limit_bytes`: how much space the environments with jobs' requirements may take while no job uses
      them.
    - `examples`: the folder with examples. The environment variable FAIRLOT_EXAMPLES gives jobs its path.

    Several instances may use the same root, also in different processes.
    """

    orders_at_once = 1  # each order starts a process, which is slower in parallel

    def __init__(
        self,
        root: Path,
        environments: Mapping[str, str],
        examples: Path,
        log_limit_bytes: int,
        places: HostPaths | None = None,
        *,
        environments_limit_bytes: int = 50 * 2**30,
    ) -> None:
        self.root = root.resolve()  # mounts need paths without symbolic links
        self.environments = environments
        self.examples = examples
        self.log_limit_bytes = log_limit_bytes
        self.places = places or HostPaths(jobs=self.root)
        self.environments_limit_bytes = environments_limit_bytes
        self._use_meter = UseMeter(self.root)
        self._new_events: list[ClusterEvent] = []
        self._seen_sources: set[str] = set()  # sources of events in the last observation
        self._watchdog = watchdog.Watchdog(self.root)

    def preload(self, job_id: int) -> None:
        """Does nothing, because orders to local jobs do not need the database."""

    def prepare(self) -> None:
        """Creates the root folder, and tries out how this machine can isolate jobs. Raises BackendError if no job can
        run here."""
        try:
            self._make_root()
            found = isolation.probe_again(self.places)
        except OSError as error:
            raise BackendError(f"local jobs cannot run here: {error}") from None
        if not found.keeps_apart:
            logger.warning("%s %s", found.short, " ".join(found.not_kept))
        elif lacking := (*found.unreachable, *found.closed_devices):
            logger.warning("jobs cannot read or open what they need: %s", ", ".join(lacking))

    @property
    def isolation(self) -> Isolation:
        """Returns how jobs that this process starts are isolated. Raises BackendError if no job can run here."""
        try:
            self._make_root()
            return isolation.known(self.places)
        except OSError as error:
            raise BackendError(f"local jobs cannot run here: {error}") from None

    def last_isolation(self) -> Isolation:
        """Returns the isolation that was stored by the last probe of this machine, possibly in another process.

        Probes the machine if nothing valid is stored. Raises BackendError if no job can run on this machine.
        """
        try:
            return isolation.last(self.places)
        except OSError as error:
            raise BackendError(f"local jobs cannot run here: {error}") from None

    def _make_root(self) -> None:
        (self.root / ".status").mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            self.root.chmod(0o711)  # the users of teams must be able to pass through it

    # --- orders --------------------------------------------------------------------------------

    def start(self, gang: Gang) -> None:
        """Starts the gang under its epoch (the number of the job's attempt).

        Does nothing if this epoch was already started or stopped, or if the job has a later epoch.
        """
        self._begin(gang, thaw=False)

    def thaw(self, gang: Gang) -> None:
        """Resumes the job's frozen (paused) processes. They then belong to the epoch of `gang`.

        Starts new processes instead if the frozen ones have ended or had other GPUs.
        """
        self._begin(gang, thaw=True)

    def stop(self, *, job_id: int, epoch: int, token: UUID, grace_seconds: float) -> None:
        """Sends SIGTERM to every process of a lease, and SIGKILL after `grace_seconds`. Returns without waiting.

        `epoch` and `token` identify the lease. If the lease has not started yet, it will never start.
        """
        order = {"epoch": epoch, "token": str(token), "verb": "stop", "grace_seconds": grace_seconds}
        try:
            with self._orders(job_id) as files:
                if not self._is_newest(files, epoch, token):
                    return
                status = read_json(files.status(epoch))
                if status is None or (status["phase"] == "starting" and not status["supervisor"]):
                    reports.finish(files, epoch, str(token), End.STOPPED, NEVER_STARTED)
                write_json(files.desired, order)
                files.poke()
        except BackendError as error:
            # A user must be able to stop a job even if the disk is full or the job has damaged its folder.
            if not (
                isinstance(error.__cause__, OSError | ValueError) and self._terminate(job_id, epoch, token)
            ):
                raise
            logger.warning("job %s is stopped by a signal, as %s", job_id, error)

    def freeze(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Freezes the processes of a lease: pauses them until `thaw` resumes them. Returns without waiting.

        Does nothing if the lease is being stopped.

        `epoch` and `token` identify the lease.
        """
        with self._orders(job_id) as files:
            order = read_json(files.desired)
            known = order is not None and order["epoch"] == epoch and order["verb"] != "stop"
            if known and self._is_newest(files, epoch, token):
                write_json(files.desired, {"epoch": epoch, "token": str(token), "verb": "freeze"})
                files.poke()

    def forget(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Deletes the report about an ended lease. Keeps the job's logs and checkpoints.

        `epoch` and `token` identify the lease. Afterwards this epoch of the job can never run again.
        """
        with self._orders(job_id) as files:
            status = read_json(files.status(epoch))
            if status is None or status["phase"] != "ended" or status["token"] != str(token):
                return
            forgotten = read_json(files.forgotten)
            if forgotten is None or forgotten["epoch"] < epoch:
                write_json(files.forgotten, {"epoch": epoch, "token": str(token)})
            gang = read_json(files.gang)
            if gang is not None and gang["epoch"] <= epoch:
                files.gang.unlink()
                files.beat.unlink(missing_ok=True)
            files.status(epoch).unlink()

    def remove_files(self, *, job_id: int) -> None:
        """Deletes logs, checkpoints and reports of a job that has ended. Raises BackendError while the job runs."""
        files = JobFiles(self.root, job_id)
        try:
            removal.remove(files)
        except Busy as error:
            raise BackendError(str(error)) from None
        except OSError as error:
            raise BackendError(f"the folder of job {job_id} cannot be removed: {error}") from error

    def announce(self, *, service: int, name: str, job_id: int) -> None:
        """Does nothing, because local services have no DNS names; clients use the replicas' addresses."""

    def withdraw(self, *, service: int, name: str, job_id: int) -> None:
        """Does nothing, because `announce` creates no DNS names."""

    # --- reports -------------------------------------------------------------------------------

    def observe(self) -> Sequence[Observation]:
        """Returns the state of every lease for which `forget` has not been called.

        First kills the processes of gangs whose supervisor has vanished or hangs, and reports these gangs as ended.
        """
        observations = []
        said: dict[str, ClusterEvent] = {}
        self._watchdog.begin_check()
        for path in reports_in(self.root):
            try:
                status = read_json(path)
                if status is not None:
                    files = JobFiles(self.root, int(status["job_id"]))
                    status = self._settled(files, status)
                    observations.append(reports.observation(files, status))
                    said |= {event.source: event for event in reports.cluster_events(status)}
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.error("%s is left out, as it is damaged or the disk refuses: %r", path, error)
        self._watchdog.end_check(str(seen.token) for seen in observations)
        self._new_events += [event for source, event in said.items() if source not in self._seen_sources]
        self._seen_sources = set(said)
        return observations

    def changed(self) -> Sequence[Observation]:
        """Returns the state of every lease, even if it has not changed, because reading all reports is cheap."""
        return self.observe()

    def staleness(self) -> float:
        """Returns 0, because each call of `observe` reads the reports again."""
        return 0.0

    def node_gpus(self) -> None:
        """Returns None, because admins declare the nodes of a local cluster."""

    def cluster_events(self) -> Sequence[ClusterEvent]:
        """Returns new events since the last call: one for each log that a supervisor could not write."""
        events, self._new_events = self._new_events, []
        return events

    def use(self) -> Sequence[Use]:
        """Takes a sample of GPU use and returns the resulting measurements.

        The same process must take all samples, because an instance compares each sample with the one before.
        """
        return self._use_meter.sample()

    def samples(self) -> Sequence[Sample]:
        """Returns the samples that `use` has collected since the last call."""
        return self._use_meter.samples()

    def advance(self) -> None:
        """Does nothing, because supervisors carry out all steps of an order by themselves."""

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`. The log contains the output of all attempts.

        The chunk's `complete` is true if the chunk reaches the end of the log and no attempt of the job is running.
        `last_attempt` is not needed for this and is ignored.
        """
        files = JobFiles(self.root, job_id)
        return self._logs(job_id).read(
            rank,
            offset,
            limit,
            is_over=lambda: all(status["phase"] == "ended" for status in files.statuses()),
        )

    def log_size(self, *, job_id: int, rank: int) -> int:
        """Returns the current size of a rank's log in bytes; 0 if there is no log."""
        return self._logs(job_id).size(rank)

    def log_times(self, *, job_id: int) -> LogFiles:
        """Returns a reader of the times of the job's logs."""
        return self._logs(job_id)

    def log_ranks(self, *, job_id: int) -> Sequence[int]:
        """Returns the ranks for which the job has a log."""
        return self._logs(job_id).ranks()

    def files_are_ready(self, *, job_id: int) -> bool:
        """Returns True, because the portal itself reads the files of local jobs."""
        return True

    def start_reader(self, *, job_id: int) -> bool:
        """Returns False, because the portal itself reads the files of local jobs."""
        return False

    def stop_readers(self, *, unless: Callable[[int], bool]) -> None:
        """Does nothing, because the portal itself reads the files of local jobs."""

    def list_files(self, *, job_id: int, path: str, after: str = "", limit: int) -> FileList:
        """Returns at most `limit` entries of a folder of the job. See Backend.list_files."""
        return job_folder.list_folder(JobFiles(self.root, job_id), path, after=after, limit=limit)

    def list_results(self, *, job_id: int, limit: int) -> ResultList:
        """Returns the newest `limit` files that the job wrote or changed. See Backend.list_results."""
        return find_results(job_folder.place_of(JobFiles(self.root, job_id)), limit)

    def open_file(self, *, job_id: int, path: str, offset: int = 0) -> PlainFile:
        """Opens a plain file of the job for reading from byte `offset` on. See Backend.open_file."""
        return job_folder.open_file(JobFiles(self.root, job_id), path, offset)

    def measure_files(self, *, job_id: int) -> FileSizes:
        """Returns how much disk space the files of the job take, logs included."""
        return job_folder.measure(JobFiles(self.root, job_id))

    def open_terminal(
        self,
        *,
        job_id: int,
        key: str,
        rows: int,
        columns: int,
        rank: int | None = None,
        is_trusted: bool = False,
    ) -> terminal.LocalTerminal:
        """Opens a terminal in the running gang of a job. See Backend.open_terminal."""
        files = JobFiles(self.root, job_id)
        return terminal.open_terminal(
            files, key=key, rows=rows, columns=columns, rank=rank, is_trusted=is_trusted
        )

    def end_terminal(self, *, job_id: int, key: str) -> None:
        """Ends a terminal of a job. See Backend.end_terminal."""
        terminal.end_terminal(JobFiles(self.root, job_id), key=key)

    def changes(self, *, timeout: float) -> Generator[None, None, None]:
        """Yields None immediately, then whenever a supervisor replaces a report, and at least every `timeout`
        seconds."""
        (self.root / ".status").mkdir(mode=0o700, parents=True, exist_ok=True)
        yield from renames_in(self.root / ".status", timeout)

    # --- implementation ------------------------------------------------------------------------

    def _terminate(self, job_id: int, epoch: int, token: UUID) -> bool:
        try:
            return reports.terminate(JobFiles(self.root, job_id), epoch, str(token))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _settled(self, files: JobFiles, status: dict[str, Any]) -> dict[str, Any]:
        """Returns the gang's current report. If the gang's supervisor hangs or has vanished, first ends the gang.

        `status` is the report as it was read from its file.
        """
        status = reports.settle(files, status)
        if status["phase"] != "ended" and self._watchdog.is_overdue(files, status):
            why = f"the job's supervisor sent no heartbeat for {watchdog.PATIENCE:g} s and was killed"
            reports.kill_hung(files, status, why=why)
            status = read_json(files.status(status["epoch"])) or status
        return status

    def _logs(self, job_id: int) -> LogFiles:
        return LogFiles(JobFiles(self.root, job_id).logs, self.log_limit_bytes)

    @contextmanager
    def _orders(self, job_id: int) -> Iterator[JobFiles]:
        """Holds the lock on the job's orders inside the `with` block, and yields the job's files.

        Converts errors in the block to BackendError.
        """
        files = JobFiles(self.root, job_id)
        try:
            files.make()
            with files.orders_lock():
                yield files
        except Busy as error:
            raise BackendError(str(error)) from None
        except (OSError, ValueError) as error:
            raise BackendError(f"the folder of job {job_id} cannot be used: {error}") from error

    def _is_newest(self, files: JobFiles, epoch: int, token: UUID) -> bool:
        """Returns whether the lease that `epoch` and `token` identify may still get orders.

        Returns False if a later epoch of the job is known, or if `forget` was called for this epoch. Raises
        BackendError if the epoch belongs to a lease with another token.
        """
        known = [read_json(path) for path in (files.gang, files.desired, files.forgotten)]
        for other in filter(None, known):
            if other["epoch"] > epoch:
                return False
            if other["epoch"] == epoch and other["token"] != str(token):
                raise BackendError(f"attempt {epoch} of job {files.job_id} already belongs to another lease")
        forgotten = known[2]
        return forgotten is None or forgotten["epoch"] < epoch

    def _begin(self, gang: Gang, *, thaw: bool) -> None:
        with self._orders(gang.job_id) as files:
            if not self._is_newest(files, gang.epoch, gang.token):
                return
            status = read_json(files.status(gang.epoch))
            if status is not None and (status["phase"] != "starting" or status["supervisor"]):
                return  # the gang was already started
            order = read_json(files.desired)
            if order is not None and order["epoch"] == gang.epoch and order["verb"] == "stop":
                reports.finish(files, gang.epoch, str(gang.token), End.STOPPED, NEVER_STARTED)
                return
            try:
                described = self._gang_as_json(gang, files)
            except ValueError as error:
                reports.finish(files, gang.epoch, str(gang.token), End.START_FAILED, str(error))
                return
            described["continues"] = self._continues(files, described) if thaw else None
            secret_files.write(files, gang.epoch, gang.secrets)
            volumes.link(files, gang.mounts)
            if gang.code is not None:
                code_files.write(files, gang.code.content)
            if (uid := described["confinement"]["uid"]) is not None:
                if (view := described["confinement"]["view"]) is not None:
                    name = accounts.name_of(gang.team, uid)
                    view["replaced"] = accounts.write(files, name=name, uid=uid)
                for folder in (secret_files.files_of(files, gang.epoch), volumes.place(files)):
                    sandbox.grant_read(folder, below=files.folder, gid=uid)
            self._order_run(files, described)
        files.poke()

    def _order_run(self, files: JobFiles, gang: dict[str, Any]) -> None:
        """Writes the order to run the gang. Also starts a supervisor if the job has no running supervisor, that is, if
        no process holds the job's run lock.
        """
        run_lock = files.open_run_lock()
        try:
            for older in files.statuses():
                self._clear_older(files, older, gang["epoch"], supervised=run_lock is None)
            write_json(files.gang, gang)
            write_json(files.desired, {"epoch": gang["epoch"], "token": gang["token"], "verb": "run"})
            status = {key: gang[key] for key in ("job_id", "epoch", "token", "ordered_at")}
            status |= {"phase": "starting", "supervisor": None, "marker": gang["token"]}
            write_json(files.status(gang["epoch"]), status)
            if run_lock is not None:
                _launch(files, run_lock, isolation.launcher(self.isolation))
        finally:
            if run_lock is not None:
                os.close(run_lock)

    def _clear_older(self, files: JobFiles, older: dict[str, Any], epoch: int, *, supervised: bool) -> None:
        """Ends the attempt that the report `older` describes, if it is earlier than attempt `epoch`.

        - If the earlier attempt has ended: deletes its report if it is more than KEPT_REPORTS attempts old.
        - If no supervisor has begun the earlier attempt: reports it as stopped.
        - If a supervisor of the job is running (`supervised`): does nothing, because that supervisor ends the earlier
          attempt.
        - Otherwise: kills its processes. Raises BackendError if some of them survive.
        """
        if older["epoch"] >= epoch:
            return
        if older["phase"] == "ended":
            if older["epoch"] < epoch - KEPT_REPORTS:
                files.status(older["epoch"]).unlink()
        elif not older["supervisor"]:
            message = "a newer attempt of the job replaced this attempt before this attempt began"
            reports.finish(files, older["epoch"], older["token"], End.STOPPED, message)
        elif not supervised and not reports.end_leftovers(files, older):
            raise BackendError("processes of an earlier attempt of the job are still ending")

    def _gang_as_json(self, gang: Gang, files: JobFiles) -> dict[str, Any]:
        """Returns the content of gang.json: everything that the supervisor must know about the gang.

        Raises ValueError, with a message for users, if the gang cannot run on this machine.
        """
        if [worker.rank for worker in gang.workers] != list(range(len(gang.workers))):
            raise ValueError("the workers' ranks must be 0, 1, 2 and so on, without gaps")
        found = self.isolation
        if not (found.keeps_apart or gang.is_trusted):
            raise ValueError(found.refusal)
        if found.users and gang.uid is None:
            raise ValueError("the job's team has no user account on this machine")
        secret_files.check(gang.secrets)
        volumes.check(gang.mounts, self.places, read_only=found.namespaces)
        binds = [Bind(path=one.source, writable=not one.read_only) for one in gang.mounts]
        if gang.mounts:
            binds.append(Bind(path=str(volumes.place(files)), writable=False))
        binds += [Bind(path=str(path), writable=False) for path in inputs.folders(self.root, gang.inputs)]
        if gang.copies is not None:
            copied = inputs.folders_to_copy(self.root, gang.copies, files)
            binds += [Bind(path=source, writable=False) for source, _ in copied]
            gang = with_copy(gang, gang.copies, copied, notes_in=str(files.folder / "home"))
        if gang.secrets.folders:
            binds.append(Bind(path=str(secret_files.files_of(files, gang.epoch)), writable=False))
        roles: list[tuple[GangRole | None, int]] = [*gang.roles_of_workers()]
        workers = [
            {
                "environment": self._environment(gang, worker, files, role),
                "folder": str(_work(files, worker)),
                "gpus": [worker.node, *worker.gpu_indices, *worker.gpu_uuids],
                **(_role_settings(role, index) if role else {}),
            }
            for worker, (role, index) in zip(
                gang.workers, roles or [(None, 0)] * len(gang.workers), strict=True
            )
        ]
        return {
            "job_id": gang.job_id,
            "epoch": gang.epoch,
            "token": str(gang.token),
            "ordered_at": processes.stamp(),
            "command": list(gang.command),
            "leader": gang.leader,
            "hostfile": _hostfile(gang),
            "is_elastic": gang.bounds is not None and not gang.is_mpi,
            "progress_pattern": gang.progress_pattern,
            "grace_seconds": gang.grace_seconds,
            "log_limit_bytes": min(gang.log_limit_bytes, self.log_limit_bytes),
            "workers": workers,
            "code": gang.code.digest if gang.code else None,
            "endpoint": _probe_settings(gang.endpoint),
            "checkpoint": gang.checkpoint,
            "confinement": self._confinement(gang, found, files, binds),
            "kept_apart": found.keeps_apart,
            "packages": self._packages(gang, found, self._path(gang.environment_name)),
        }

    def _packages(self, gang: Gang, found: Isolation, path: str) -> dict[str, Any] | None:
        """Returns what the supervisor must know to install the gang's requirements; None if it has none.

        Raises ValueError, with a message for users, if the environment has no Python, or if the roles of the gang have
        different ones.
        """
        wanted = requirements.normalised(gang.requirements)
        if not wanted:
            return None
        paths = {self._path(role.environment_name) for role in gang.roles} or {path}
        pythons = sorted({environments.compatibility(one) for one in paths})
        if len(pythons) > 1:
            raise ValueError(
                f"the requirements are installed once, but the roles have {' and '.join(pythons)}; choose"
                " environments with the same Python"
            )
        open_variables = environments.for_pip(gang.environment)
        folder = environments.folder_for(
            self.places.jobs,
            requirements=wanted,
            path=path,
            variables=open_variables | environments.for_pip(gang.secrets.variables),
            uid=gang.uid if found.users else None,
        )
        return {
            "folder": str(folder),
            "requirements": wanted,
            "python": environments.python_in(path),
            "path": path,
            "variables": open_variables,  # not those of secrets, which are nowhere on the disk
            "limit_bytes": self.environments_limit_bytes,
            "confinement": self.places.confinement(
                found,
                folder / environments.BUILDING,
                gang.uid,
                closed=self._devices_of_others(frozenset(), found),
            ),
        }

    def _confinement(
        self, gang: Gang, found: Isolation, files: JobFiles, binds: Sequence[Bind]
    ) -> sandbox.Confinement:
        held = frozenset(uuid for worker in gang.workers for uuid in worker.gpu_uuids)
        closed = self._devices_of_others(held, found)
        return self.places.confinement(found, files.folder, gang.uid, binds, closed=closed)

    def _devices_of_others(self, held: frozenset[str], found: Isolation) -> list[str]:
        try:
            return devices.of_others(held, self.places.dev) if found.namespaces else []
        except gpus.NvmlError as error:
            raise BackendError(
                f"the machine's GPUs cannot be listed, so GPUs of other jobs cannot be hidden from this job: {error}"
            ) from None

    def _path(self, name: str) -> str:
        """Returns the default value of PATH in the environment `name`. Raises ValueError, with a message for users, if
        there is no such environment."""
        name = name or next(iter(self.environments), "")
        if name not in self.environments:
            known = ", ".join(self.environments)
            raise ValueError(f"there is no environment {name!r} on this machine (available: {known})")
        return self.environments[name]

    def _environment(
        self, gang: Gang, worker: Worker, files: JobFiles, role: GangRole | None
    ) -> dict[str, str]:
        """Returns all environment variables of a worker. `role` is its role; None if the gang has no roles.

        The user's variables replace the defaults, such as PATH and HOME. They never replace the variables that describe
        the attempt, such as RANK and those whose names begin with FAIRLOT_.
        """
        path = self._path(role.environment_name if role else gang.environment_name)
        rank, size = str(worker.rank), str(len(gang.workers))
        # On one machine mpirun starts all processes beside the launcher, which therefore sees the GPUs of all workers.
        launches = gang.is_mpi and worker.rank == gang.leader
        seen = [
            gpu
            for one in (gang.workers if launches else [worker])
            for gpu in one.gpu_uuids or one.gpu_indices
        ]
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, seen)),
            "FAIRLOT_RANK": rank,
            "FAIRLOT_WORLD_SIZE": size,
            "FAIRLOT_JOB_ID": str(gang.job_id),
            "FAIRLOT_EPOCH": str(gang.epoch),
            "FAIRLOT_GENERATION": gang.generation,
            "FAIRLOT_CHECKPOINT_DIR": str(files.checkpoints),
            "FAIRLOT_PROGRESS": str(files.progress(worker.rank)),
            "FAIRLOT_EXAMPLES": str(self.examples),
        }
        if gang.mounts:
            ours["FAIRLOT_VOLUMES_DIR"] = str(volumes.place(files))
        ours |= {one.variable: str(JobFiles(self.root, one.job_id).folder) for one in gang.inputs}
        if gang.secrets.folders:
            ours["FAIRLOT_SECRETS_DIR"] = str(secret_files.files_of(files, gang.epoch))
        if gang.code is not None:
            ours["FAIRLOT_CODE_DIR"] = str(_work(files, worker) / code_files.FOLDER)
        if worker.virtual_speed is not None:
            ours["FAIRLOT_GPU_SPEED"] = str(worker.virtual_speed)
        if gang.is_mpi:
            ours |= hostfile_variables(str(files.folder / "tmp" / f"rank-{rank}" / HOSTFILE))
        elif worker.gpu_indices:  # the ranks of processes that train; each worker sees only its own GPUs
            held = sum(1 for one in gang.workers if one.gpu_indices)
            ours |= {"RANK": rank, "WORLD_SIZE": str(held), "LOCAL_RANK": "0"}
        uid = gang.uid if self.isolation.users else os.geteuid()
        # Without namespaces there is no account for a team's UID, and programs such as PyTorch before 2.13 need a name.
        name = accounts.name_of(gang.team if self.isolation.users else "", uid or 0)
        usual = {
            "USER": name,
            "LOGNAME": name,
            # `pip install` puts programs into the job's home folder (bin/job-environment), which comes first.
            "PATH": f"{files.folder / 'home' / '.local' / 'job-packages' / 'bin'}:{path}",
            "HOME": str(files.folder / "home"),
            "TMPDIR": str(files.folder / "tmp" / f"rank-{rank}"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",  # so that programs print logs and progress without delay
        }
        if gang.bounds:
            ours |= elastic_variables.of_bounds(gang.bounds.least, gang.bounds.most)
        if gang.bounds and gang.is_mpi:
            ours |= elastic_variables.host_discovery(ours["FAIRLOT_HOSTFILE"])
        elif gang.bounds:
            usual |= elastic_variables.of_torchrun(
                least=gang.bounds.least,
                job_id=gang.job_id,
                workers=len(gang.workers),
                gpus=len(worker.gpu_indices),
            )
        return usual | dict(role.environment if role else gang.environment) | ours

    @staticmethod
    def _continues(files: JobFiles, gang: dict[str, Any]) -> int | None:
        """Returns the epoch of the job's frozen (paused) processes if `gang` can resume them; otherwise None.

        A gang can resume only processes that hold the same GPUs.
        """
        old, order = read_json(files.gang), read_json(files.desired)
        if old is None or order is None or order["verb"] != "freeze" or order["epoch"] != old["epoch"]:
            return None
        same = [worker["gpus"] for worker in old["workers"]] == [worker["gpus"] for worker in gang["workers"]]
        epoch: int = old["epoch"]
        return epoch if same else None


def _role_settings(role: GangRole, index: int) -> dict[str, Any]:
    """Returns the content of gang.json about a worker with a role; `index` is its number in the role."""
    return {
        "role": role.name,
        "index": index,
        "command": list(role.command),
        "ends_job": role.ends_job,
    }


def _hostfile(gang: Gang) -> str | None:
    """Returns the list of hosts for mpirun: this machine, with a slot for each GPU of the gang. None: no MPI job."""
    slots = sum(len(worker.gpu_indices) for worker in gang.workers)
    return f"localhost slots={slots}\n" if gang.is_mpi else None


def _work(files: JobFiles, worker: Worker) -> Path:
    """Returns the working folder of a worker."""
    return files.folder / "work" / f"rank-{worker.rank}"


def _probe_settings(endpoint: Endpoint | None) -> dict[str, Any] | None:
    """Returns the settings of the readiness probe, without the port, which the supervisor chooses.

    Returns None if the gang has no endpoint.
    """
    if endpoint is None:
        return None
    names = ("path", "period_seconds", "timeout_seconds", "failures")
    return {name: getattr(endpoint, name) for name in names}


@contextmanager
def _errors_of_supervisor(folder: int) -> Iterator[int]:
    """Opens supervisor.log in the job's folder for the supervisor's error output, and yields its file descriptor.

    `folder` is the file descriptor of the job's folder. If supervisor.log cannot be opened, yields a descriptor of
    /dev/null.
    """
    try:
        fd = opening.open_file("supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, folder=folder)
    except OSError as error:
        logger.warning("supervisor.log cannot be written: %s", opening.why(error))
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    with opening.opened(fd):
        yield fd


def _launch(files: JobFiles, run_lock: int, prefix: Sequence[str]) -> None:
    """Starts the supervisor as a process that is independent of this one and inherits only the run lock.

    `run_lock` is the file descriptor of the run lock. `prefix` is put before the supervisor's command. Raises
    BackendError if the supervisor does not start within LAUNCH_SECONDS.
    """
    which = (str(files.root), str(files.job_id), str(run_lock))
    command = [*prefix, sys.executable, "-I", str(SHIM), "start", *which]
    with files.opened(files.folder) as folder, _errors_of_supervisor(folder) as errors:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={"LANG": "C.UTF-8"},
            pass_fds=(run_lock,),
            start_new_session=True,
        )
        try:
            code = launcher.wait(reports.LAUNCH_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
            raise BackendError("the job's supervisor did not start in time") from None
    if code != 0:
        raise BackendError(
            f"the job's supervisor did not start (exit code {code}); see supervisor.log in the job's folder"
        )
