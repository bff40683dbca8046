"""The interface between the scheduler and the backends that run gangs. A backend carries out orders and reports states;
it decides nothing.

Every order names an attempt of a job by its number, the epoch. Repeated orders have no effect, and neither have orders
for an attempt that a newer attempt has replaced.

Backends report no timestamps. They report how many seconds ago something happened, measured with the machine's
monotonic clock. So a wrong wall clock does no harm.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from scheduling.backends.file_entries import (
    BackendError,
    FileEntry,
    FileKind,
    FileList,
    FileUnreadable,
    NoSuchFile,
    ResultList,
)
from scheduling.backends.logtimes import LogTimes
from scheduling.backends.summaries import Summary

__all__ = ["BackendError", "FileEntry", "FileKind", "FileList", "FileUnreadable", "NoSuchFile", "ResultList"]

LONGEST_PROBE = 10  # seconds that a readiness probe waits for an answer


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a gang: its rank, its node and its GPUs.

    In a gang with roles, workers with GPUs have the lowest ranks, and the workers of a role have consecutive ranks.
    """

    rank: int
    node: str
    gpu_indices: tuple[int, ...]  # empty for a role without GPUs
    gpu_uuids: tuple[str, ...]  # empty for virtual GPUs
    virtual_speed: float | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The port on which a gang's first worker listens, and the settings of its readiness probe.

    The worker's program reads the port from the environment variables PORT and FAIRLOT_PORT. The worker becomes ready
    with its first successful probe. It stays ready until `failures` probes in a row have failed.
    """

    port: int  # as the user asked; where gangs share a machine, each gang gets a different port
    path: str  # of HTTP probes, where a status of 200 to 399 means ready; empty: a TCP connection is enough
    period_seconds: int
    failures: int
    service: int | None = None  # ID of the service that this gang is a replica of
    is_session: bool = False  # the portal proxies users to this port

    @property
    def timeout_seconds(self) -> int:
        """Returns how many seconds a probe waits for an answer."""
        return min(self.period_seconds, LONGEST_PROBE)


@dataclass(frozen=True, slots=True)
class SecretFolder:
    """A secret that is mounted into the workers of a gang as a folder with one file for each key of the secret."""

    name: str
    path: str  # as the user asked: absolute, and the same in every worker
    files: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secrets:
    """A gang's secrets. Only the gang itself may read them: no report, log or error contains their values."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    folders: Sequence[SecretFolder] = ()
    # Docker configuration (JSON) with the credentials for pulling the image.
    image: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.variables or self.folders or self.image)


NO_SECRETS = Secrets()


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that is mounted into every worker of a gang."""

    name: str
    path: str  # absolute, the same in every worker
    # in Kubernetes the name of a PersistentVolumeClaim in the tenant's namespace, in the local backend a folder
    source: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Input:
    """The files of an ended job that a gang may read: its folders `checkpoint` and, on the portal's machine, `work`."""

    name: str  # lower-case letters, digits and -
    job_id: int

    @property
    def variable(self) -> str:
        """Returns the name of the variable that tells programs where the files are."""
        return f"FAIRLOT_INPUT_{self.name.upper().replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class FilesToCopy:
    """The files of an ended session that a new session gets as its own, before its program starts."""

    job_id: int  # of the ended session
    limit_bytes: int  # the gang fails to start if there is more
    with_home: bool  # also the home folder, where the backend keeps one


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """The code of a gang: a tar.gz of plain files, and the digest of the tar file in it. Every worker starts in a copy
    of these files."""

    digest: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Container:
    """Settings of each worker's container. Backends without containers ignore these settings.

    None and "" select the cluster's default for a setting.
    """

    cpus: float | None = None  # CPU request and limit
    memory: int | None = None  # memory request and limit in bytes
    shared_memory: int | None = None  # limit in bytes; shared memory counts towards `memory`
    working_directory: str = ""
    user_id: int | None = None
    group_id: int | None = None
    image_pull_policy: str = ""


DEFAULT_CONTAINER = Container()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of workers between which the size of an elastic gang is chosen at each start."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class GangRole:
    """A group of equal workers of a gang, and in what they differ from other workers."""

    name: str
    workers: int
    holds_gpus: bool
    command: Sequence[str]  # argv
    environment_name: str
    environment: Mapping[str, str]  # all variables that the user set for these workers
    container: Container = DEFAULT_CONTAINER
    ends_job: bool = False  # the gang ends when all workers of the roles with this mark have succeeded
    # Whether the role's processes are started by mpirun, which the launcher calls. `command` is then what makes the
    # worker reachable where mpirun has to log in.
    waits_for_mpirun: bool = False


@dataclass(frozen=True, slots=True)
class Gang:
    """Everything that a backend needs to start one lease (one attempt) of a job."""

    job_id: int
    epoch: int
    token: UUID
    generation: str
    command: Sequence[str]  # argv; a script is ["/bin/sh", "-c", …]
    environment_name: str  # name of a configured environment; empty: the first one
    environment: Mapping[str, str]  # variables that the user set
    progress_pattern: str  # RE2; its first group matches the number of steps
    grace_seconds: float
    log_limit_bytes: int
    workers: Sequence[Worker]
    # Extended resource that a pod requests to get these GPUs; empty for backends without pods.
    gpu_resource: str = ""
    endpoint: Endpoint | None = None
    secrets: Secrets = NO_SECRETS
    mounts: Sequence[Mount] = ()
    inputs: Sequence[Input] = ()
    copies: FilesToCopy | None = None
    code: CodeArchive | None = None
    requirements: str = ""  # text of a pip requirements file
    container: Container = DEFAULT_CONTAINER
    uid: int | None = None  # UID of the team's user on the portal's machine; None where pods run the gang
    team: str = ""  # the slug of the job's team, for the name of this user
    checkpoint: str = ""  # pattern of the names of complete checkpoints; empty: the program finds them itself
    roles: Sequence[GangRole] = ()  # in the order of ranks; empty if all workers are equal
    leader: int = 0  # the rank of the worker whose progress and port count
    is_mpi: bool = False  # mpirun starts the program and tells its processes their ranks
    # Only for MPI gangs: secret and different for each attempt, for the keys with which mpirun logs in to workers.
    mpi_seed: bytes = field(default=b"", repr=False)
    bounds: Bounds | None = None  # None: the gang has a fixed number of workers
    is_trusted: bool = False  # the job's owner has all the rights that the portal has
    may_have_begun: bool = False  # an earlier order to start this epoch had an unknown outcome

    def run_by(self, *words: str) -> Gang:
        """Returns the gang with `words` before the command of its workers, of every role."""
        roles = [replace(role, command=[*words, *role.command]) for role in self.roles]
        return replace(self, command=[*words, *self.command], roles=roles)

    def roles_of_workers(self) -> list[tuple[GangRole, int]]:
        """Returns the role of each worker, and the worker's number in it, by rank. Empty if the gang has no roles."""
        return [(role, index) for role in self.roles for index in range(role.workers)]


class Phase(StrEnum):
    """The state of a gang's processes, for all ranks together."""

    STARTING = "starting"  # at least one worker does not run yet
    RUNNING = "running"
    FROZEN = "frozen"
    ENDED = "ended"  # every process is gone, including the processes that workers forked


class End(StrEnum):
    """How a gang ended: it succeeded, failed, was stopped, was lost, did not start, or was deleted by someone else."""

    SUCCEEDED = "succeeded"  # every worker exited with 0
    # A worker exited with a code other than 0, or a signal that Fairlot did not send killed it.
    FAILED = "failed"
    STOPPED = "stopped"  # Fairlot ordered the gang to stop
    LOST = "lost"  # the gang vanished without a report, for example after a reboot or kill -9
    START_FAILED = "start_failed"  # a worker could not be started
    DELETED = "deleted"  # someone other than Fairlot deleted the gang


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed state of one lease's processes. Fields named `…_age` say how many seconds before the observation
    something happened."""

    job_id: int
    epoch: int
    token: UUID
    phase: Phase
    running_age: float | None = None  # seconds since all workers have been running
    frozen_age: float | None = None  # seconds since the last worker was frozen
    seen_age: float = 0.0  # seconds since the processes were last known to be alive
    ended_age: float | None = None  # seconds since the last process ended
    end: End | None = None
    exit_code: int | None = None
    message: str = ""  # the reason for the state, in words for users
    steps: float | None = None  # last progress that rank 0 reported
    steps_age: float | None = None  # seconds since rank 0 reported this progress
    # Only for gangs with an endpoint:
    ready_age: float | None = None  # seconds since the endpoint became ready; None while it is not ready
    address: str = ""  # host and port of the endpoint
    why_not_ready: str = ""  # the reason in words for users, where the backend knows one
    resumed_from: str = ""  # the checkpoint that the backend named to the gang at its start


@dataclass(frozen=True, slots=True)
class Use:
    """A measurement of a gang's GPU use, made `age` seconds ago. A backend may report one measurement several times;
    the repetitions have no effect."""

    token: UUID
    unused_for: float  # seconds without any use, all of which were measured; 0: the GPUs are in use
    # Last measured load in percent: of the GPUs or, where `by_gpus` is false, of one processor.
    percent: float
    by_gpus: bool  # whether the load was measured on the GPUs; otherwise it is derived from processor time and progress
    age: float = 0.0
    # The last seconds of `unused_for`, in which no process was on the GPUs. 0 while a process is there, and where the
    # backend cannot tell.
    processless_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of a gang during one window of WINDOW seconds (summaries.py).

    `number` identifies the window among those of the job. A backend may report a window several times; the repetitions
    have no effect.
    """

    token: UUID
    number: int
    age: float  # seconds since the window began
    values: Mapping[str, Summary]  # by name (scheduling/metrics/names.py)


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of one type on one node, on a cluster where Fairlot discovers the nodes by itself."""

    host: str
    resource: str  # extended resource that a pod requests to get one of these GPUs
    product: str  # the hardware's name for the GPU type, including the slice for partitioned GPUs
    part: str  # the slice alone, such as a MIG profile; empty for whole GPUs
    installed: int
    failed: int
    others: int  # number of GPUs that pods of others than Fairlot hold
    is_up: bool
    why_not: str  # why the node accepts no new workers, in plain words; empty when the node accepts them
    cpus: float | None = None  # processors that the node offers to pods
    memory: int | None = None  # bytes of memory that the node offers to pods


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A part of the log of one rank (one worker of a gang).

    `data` begins at byte `offset` of the log; the next read continues at byte `next_offset`.
    """

    rank: int
    offset: int
    next_offset: int
    data: bytes
    complete: bool  # no attempt that the caller asked about will write more


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The disk space that a job's files take, in bytes. `of_parts` has it for each folder in the job's folder."""

    of_parts: Mapping[str, int]
    files: int
    is_complete: bool  # False: the walk ended at a limit, so that there is more

    @property
    def total(self) -> int:
        return sum(self.of_parts.values())


class OpenFile(Protocol):
    """A plain file of a job, open for reading from an offset on. The caller must close it."""

    size: int  # when the file was opened; the job may change it at any time
    stored: int  # bytes on the disk, which are fewer than `size` for a sparse file
    age: float  # seconds since the last change
    version: str  # changes when the content changes
    identity: str  # of another file that the job puts in its place: another one

    def read(self, limit: int) -> bytes:
        """Returns the next bytes, at most `limit`; none at the end of the file. Raises FileUnreadable."""

    def close(self) -> None:
        """Closes the file. Idempotent."""


class OpenTerminal(Protocol):
    """A terminal with a shell beside a worker of a running gang. The caller must close it.

    `fileno` is non-blocking; what is written to it are keys. `link` gets a message when the shell ends, or when
    somebody else has opened the same terminal; an empty message means that the gang has ended.
    """

    is_new: bool  # False: the shell was there before
    earlier: bytes  # the newest output of a shell that was there before; it is in memory only
    link: socket.socket

    def read(self, limit: int) -> bytes:
        """Returns output of the shell, at most `limit` bytes.

        Raises BlockingIOError if there is none now, and OSError (EIO) once the shell has ended.
        """

    def fileno(self) -> int:
        """Returns the file descriptor of the terminal's side that the caller has."""

    def resize(self, *, rows: int, columns: int) -> None:
        """Tells the shell's programs the size of the screen."""

    def exit_code(self, message: bytes) -> int | None:
        """Returns the shell's exit code if `message`, which `link` received, has one; otherwise None."""

    def end(self) -> None:
        """Ends the shell. Returns without waiting."""

    def close(self) -> None:
        """Leaves the terminal. Idempotent. The shell lives on for a while, so that it can be opened again."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A message from the cluster about a job, for example a warning. The message does not change the job's state."""

    source: str  # identifies the message, so that the caller recognises a repetition
    job_id: int
    epoch: int
    text: str  # plain words for users
    age: float  # seconds since the event


class Backend(Protocol):
    """Starts, stops and observes gangs on one cluster."""

    orders_at_once: int  # how many threads may give orders in parallel

    def preload(self, job_id: int) -> None:
        """Reads everything from the database that later orders for this job need.

        Afterwards, threads without a database connection can give these orders.
        """

    def prepare(self) -> None:
        """Checks that the backend can work. Raises BackendError, with a message for users, if it cannot."""

    def start(self, gang: Gang) -> None:
        """Starts all workers of the gang under the gang's epoch. Does nothing if this epoch was already started.

        From then on the backend ignores orders for older epochs of the job.
        """

    def stop(self, *, job_id: int, epoch: int, token: UUID, grace_seconds: float) -> None:
        """Sends SIGTERM to every process of a lease, and SIGKILL after `grace_seconds`. Returns without waiting.

        `epoch` and `token` identify the lease.
        """

    def freeze(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Suspends the processes of a lease until a call of `thaw` resumes them. Returns without waiting.

        `epoch` and `token` identify the lease.
        """

    def thaw(self, gang: Gang) -> None:
        """Resumes the job's suspended processes on the same GPUs. From then on they belong to the new attempt that
        `gang` describes."""

    def observe(self) -> Sequence[Observation]:
        """Returns the state of every lease for which `forget` has not been called."""

    def changed(self) -> Sequence[Observation]:
        """Returns all observations that changed since the last call. May also return some that did not change."""

    def cluster_events(self) -> Sequence[ClusterEvent]:
        """Returns the cluster's messages since the last call. After a restart, the result may repeat earlier
        messages."""

    def staleness(self) -> float:
        """Returns the largest possible age of the data that `observe` returns, in seconds."""

    def use(self) -> Sequence[Use]:
        """Returns the measurements of GPU use since the last call.

        Returns an empty sequence if this backend does not measure GPU use. Fairlot then reads it from another source,
        such as the cluster's metrics.
        """

    def samples(self) -> Sequence[Sample]:
        """Returns the samples of the gangs' metrics, whose windows have ended since the last call.

        Returns an empty sequence if this backend takes no samples.
        """

    def advance(self) -> None:
        """Continues orders that need several steps, such as a gang's start, as far as the cluster's state allows.

        The caller calls this method again whenever the state of the cluster may have changed.
        """

    def node_gpus(self) -> Sequence[NodeGpus] | None:
        """Returns all GPUs of the cluster if any of them changed since the last call, otherwise None.

        Always returns None on clusters whose nodes were entered by admins, because the backend discovers no nodes
        there.
        """

    def forget(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Deletes the backend's report about an ended lease. Keeps the job's logs and checkpoints.

        `epoch` and `token` identify the lease.
        """

    def remove_files(self, *, job_id: int) -> None:
        """Deletes the logs and checkpoints of a job that has ended. Idempotent."""

    def announce(self, *, service: int, name: str, job_id: int) -> None:
        """Makes the DNS name `name` resolve to the ready replicas of the service with ID `service`. Idempotent.

        `job_id`: a job that runs, or once ran, a replica of the service. It tells the backend the service's team. Does
        nothing on clusters that give services no DNS names.
        """

    def withdraw(self, *, service: int, name: str, job_id: int) -> None:
        """Removes the DNS name `name` that `announce` created for the service with ID `service`. Idempotent.

        `job_id`: a job that runs, or once ran, a replica of the service. It tells the backend the service's team.
        """

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`.

        `last_attempt`: the epoch of the last attempt whose output the caller expects; 0 if no attempt ran. The chunk's
        `complete` is true if the chunk reaches the end of the log, and no attempt up to `last_attempt` will write more.
        """

    def log_size(self, *, job_id: int, rank: int) -> int:
        """Returns the current size of a rank's log in bytes; 0 if there is no log."""

    def log_times(self, *, job_id: int) -> LogTimes:
        """Returns a reader of the times of the job's logs."""

    def log_ranks(self, *, job_id: int) -> Sequence[int]:
        """Returns the ranks for which the job has a log."""

    def files_are_ready(self, *, job_id: int) -> bool:
        """Returns whether the job's files can be read now. If not, the caller must call `start_reader`.

        Raises FilesNotReady while a reader starts, and FilesElsewhere where the portal cannot read files.
        """

    def start_reader(self, *, job_id: int) -> bool:
        """Starts what reads the job's files, if they are not ready. Idempotent. Raises as `files_are_ready` does.

        Returns False if nothing was started.
        """

    def stop_readers(self, *, unless: Callable[[int], bool]) -> None:
        """Removes readers of files that have ended, that do not start, or of jobs for which `unless` is False."""

    def list_files(self, *, job_id: int, path: str, after: str = "", limit: int) -> FileList:
        """Returns at most `limit` entries of a folder of the job, also while the job runs.

        - `path`: the text (file_names.py) of the folder's path. The empty path is the folder of the parts of a job:
          `work`, with the working folder of each worker, and `checkpoint`. A part that does not exist is left out.
        - `after`: the `after` of the list before this one.

        Raises NoSuchFile if there is no such folder, and FileUnreadable if it cannot be read.
        """

    def list_results(self, *, job_id: int, limit: int) -> ResultList:
        """Returns the newest `limit` files that the job wrote or changed, from all folders that `list_files` shows.

        Leaves out what results.py names. The search has limits. Raises FileUnreadable.
        """

    def open_file(self, *, job_id: int, path: str, offset: int = 0) -> OpenFile:
        """Opens a plain file of the job for reading from byte `offset` on, also while the job runs.

        `path` is a text, as for `list_files`. Never follows a link and never waits for the job. Raises NoSuchFile if
        nothing has this path, and FileUnreadable if it is no plain file or cannot be read.
        """

    def measure_files(self, *, job_id: int) -> FileSizes | None:
        """Returns how much disk space the files of the job take, logs included. The walk has limits.

        Returns None on clusters where the files cannot be measured. Raises FileUnreadable.
        """

    def open_terminal(
        self,
        *,
        job_id: int,
        key: str,
        rows: int,
        columns: int,
        rank: int | None = None,
        is_trusted: bool = False,
    ) -> OpenTerminal:
        """Opens a terminal in the running gang of a job. May take seconds.

        - `key`: names the terminal. If it exists, it is returned, and the connection that had it loses it.
        - `rank`: the worker beside which a new shell starts if there is no terminal with this key. None: none starts.
        - `is_trusted`: the user has all the rights that the portal has. Other users get no shell in a gang that was
          started with these rights, even if gangs that start now have none.

        Raises NoSuchTerminal if there is no such terminal, or can be none now, and TerminalElsewhere if only the
        cluster's own tools open terminals in its workers. Raises BackendError if the terminal cannot be opened.
        """

    def end_terminal(self, *, job_id: int, key: str) -> None:
        """Ends the terminal with this key, if there is one. Returns without waiting. Raises BackendError."""

    def changes(self, *, timeout: float) -> Generator[None, None, None]:
        """Yields None whenever the state of a gang may have changed, and at least every `timeout` seconds."""


class LogUnreadable(BackendError):
    """Raised when a log exists but cannot be read. The message gives users the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The log cannot be read: {why}.")


class FilesElsewhere(FileUnreadable):
    """Raised where only the cluster's own tools reach the files of jobs. `how` has the commands, one a line."""

    def __init__(self, message: str, how: str = "") -> None:
        super().__init__(message)
        self.how = how


class FilesNotReady(FileUnreadable):
    """Raised while a reader of the job's files starts in the cluster. Ask again after RETRY_SECONDS."""


RETRY_SECONDS = 3


class NoSuchTerminal(BackendError):
    """Raised when a terminal does not exist any more, or cannot be opened now. The message gives users the reason."""


class TerminalElsewhere(BackendError):
    """Raised where only the cluster's own tools open terminals. `how` is the command for the worker."""

    def __init__(self, message: str, how: str) -> None:
        super().__init__(message)
        self.how = how


class Unanswered(BackendError):
    """Raised when nobody knows whether an order took effect: the cluster did not answer, or its answer does not say.

    Not raised if the cluster rejected the order.
    """
