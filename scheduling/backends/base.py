"""The interface between the scheduler and whatever runs gangs. A backend carries out orders and reports; it decides
nothing.

Every order names the lease's epoch (one per attempt) and is idempotent: an order that is given twice, late or after
a crash has the same effect as one given once. Times are reported as ages on the machine's monotonic clock. The
caller converts them to the database's clock, so a wrong wall clock does no harm.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

LONGEST_PROBE = 10  # seconds


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a gang, with the node and the GPUs that it runs on."""

    rank: int
    node: str
    gpu_indices: tuple[int, ...]
    gpu_uuids: tuple[str, ...]  # empty for virtual GPUs
    virtual_speed: float | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The port on which a gang's first worker listens, and how to probe whether it is ready.

    The program finds the port in PORT and FAIRLOT_PORT. A worker becomes ready with its first successful probe and
    stays ready until `failures` probes in a row have failed.
    """

    port: int  # as the user asked; where gangs share a machine, each gets a different port
    path: str  # probed by HTTP, where a status of 200 to 399 means ready; empty: an open connection is enough
    period_seconds: int
    failures: int
    service: int | None = None  # the service that this gang is a replica of
    is_session: bool = False  # the portal proxies users to it

    @property
    def timeout_seconds(self) -> int:
        """Returns how many seconds a probe waits for an answer."""
        return min(self.period_seconds, LONGEST_PROBE)


@dataclass(frozen=True, slots=True)
class SecretFolder:
    """A secret that is mounted as a folder with one file per key."""

    name: str
    path: str  # as the user asked: absolute, the same in every worker
    files: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secrets:
    """A gang's secrets. Only the gang itself may read them: no report, log or error repeats any of their values."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    folders: Sequence[SecretFolder] = ()
    image: str = field(default="", repr=False)  # Docker configuration with the credentials for the image

    def __bool__(self) -> bool:
        return bool(self.variables or self.folders or self.image)


NO_SECRETS = Secrets()


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that is mounted into every worker of a gang."""

    name: str
    path: str  # absolute, the same in every worker
    source: str  # in Kubernetes a claim in the tenant's namespace, in the local backend a folder
    read_only: bool


@dataclass(frozen=True, slots=True)
class Container:
    """Settings of each worker's container, for backends with containers. None and "" mean the cluster's default."""

    cpus: float | None = None  # both request and limit
    memory: int | None = None  # bytes, both request and limit
    shared_memory: int | None = None  # limit in bytes; shared memory counts towards `memory`
    working_directory: str = ""
    user_id: int | None = None
    group_id: int | None = None
    image_pull_policy: str = ""


DEFAULT_CONTAINER = Container()


@dataclass(frozen=True, slots=True)
class Gang:
    """Everything that a backend needs to start a lease."""

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
    gpu_resource: str = ""  # resource name that a pod requests to get one of these GPUs; empty without pods
    endpoint: Endpoint | None = None
    secrets: Secrets = NO_SECRETS
    mounts: Sequence[Mount] = ()
    container: Container = DEFAULT_CONTAINER
    uid: int | None = None  # the team's user on the portal's machine; None where pods run the gang
    is_trusted: bool = False  # the job's owner may do everything that the portal may
    may_have_begun: bool = False  # an earlier start order had an unknown outcome


class Phase(StrEnum):
    """The state of a gang's processes, all ranks together."""

    STARTING = "starting"  # not all workers run yet
    RUNNING = "running"
    FROZEN = "frozen"
    ENDED = "ended"  # every process is gone, including those that workers forked


class End(StrEnum):
    """Why a gang ended."""

    SUCCEEDED = "succeeded"  # every worker exited with 0 by itself
    FAILED = "failed"  # a worker exited with another code, or a signal that Fairlot did not send killed it
    STOPPED = "stopped"  # Fairlot ordered it to stop
    LOST = "lost"  # vanished without a report, for example after a reboot or kill -9
    START_FAILED = "start_failed"  # a worker could not be started
    DELETED = "deleted"  # someone else deleted it, not Fairlot


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed state of one lease's processes. Ages count back from the moment of the observation."""

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
    message: str = ""  # plain words for users
    steps: float | None = None  # last progress that rank 0 reported
    steps_age: float | None = None  # seconds since that report
    # Only for gangs with an endpoint:
    ready_age: float | None = None  # seconds since it has been ready; None while it is not
    address: str = ""  # host and port
    why_not_ready: str = ""  # plain words for users, where the backend knows


@dataclass(frozen=True, slots=True)
class Use:
    """How a gang used its GPUs until `age` seconds ago. Reporting the same use twice has no effect."""

    token: UUID
    unused_for: float  # seconds without any use, all of them measured; 0: the GPUs are in use
    percent: float  # last measured load: of the GPUs, or of one processor where `by_gpus` is false
    by_gpus: bool  # measured on the GPUs; otherwise derived from processor time and progress
    age: float = 0.0
    # Last seconds of `unused_for` in which no process was on the GPUs; 0 if there is one, or if that is unknown.
    processless_for: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of one type on one node, in a cluster that discovers its own nodes."""

    host: str
    resource: str  # resource name that a pod requests to get one
    product: str  # the hardware's name for its type, including the slice for partitioned GPUs
    part: str  # the slice alone; empty for whole GPUs
    installed: int
    failed: int
    others: int  # used by pods that are not Fairlot's
    is_up: bool
    why_not: str  # plain words: why the node accepts no new workers; empty when it does
    cpus: float | None = None  # processors that the node offers to pods
    memory: int | None = None  # bytes of memory that the node offers to pods


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a rank's log. `data` begins at byte `offset`; the next read continues at `next_offset`."""

    rank: int
    offset: int
    next_offset: int
    data: bytes
    complete: bool  # the attempts that were asked about will write nothing more


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A message from the cluster about a job, beside the job's state."""

    source: str  # identifies the message, so that a repetition is recognised
    job_id: int
    epoch: int
    text: str  # plain words for users
    age: float  # seconds since it happened


class Backend(Protocol):
    """Starts, stops and observes gangs on one cluster."""

    orders_at_once: int  # how many orders may be given in parallel, from threads

    def preload(self, job_id: int) -> None:
        """Loads what orders to this job need from the database, so that threads without a connection can give them."""

    def prepare(self) -> None:
        """Checks that the backend can work. Raises BackendError with a message for users if it cannot."""

    def start(self, gang: Gang) -> None:
        """Starts all workers, or leaves them running if this epoch was started already. Older epochs become void."""

    def stop(self, *, job_id: int, epoch: int, token: UUID, grace_seconds: float) -> None:
        """Sends SIGTERM to every process of the lease, and SIGKILL after `grace_seconds`. Returns at once."""

    def freeze(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Suspends the processes until `thaw` continues them. Returns at once."""

    def thaw(self, gang: Gang) -> None:
        """Continues suspended processes under a new epoch on the same GPUs."""

    def observe(self) -> Sequence[Observation]:
        """Returns the state of every lease that has not been forgotten."""

    def changed(self) -> Sequence[Observation]:
        """Returns at least those observations that changed since the last call."""

    def cluster_events(self) -> Sequence[ClusterEvent]:
        """Returns the cluster's messages since the last call; after a restart, earlier ones again too."""

    def staleness(self) -> float:
        """Returns for how many seconds the result of `observe` may be out of date."""

    def use(self) -> Sequence[Use]:
        """Returns what was measured of GPU use since the last call; nothing where another process measures it."""

    def advance(self) -> None:
        """Continues orders that take several steps, as far as the cluster allows now. Called at every change."""

    def node_gpus(self) -> Sequence[NodeGpus] | None:
        """Returns all GPUs of the cluster if any of them changed. Returns None otherwise, and where people declare
        nodes."""

    def forget(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Deletes the report about an ended lease. Logs and checkpoints stay."""

    def remove_files(self, *, job_id: int) -> None:
        """Deletes the logs and checkpoints of a job that has ended. Idempotent."""

    def announce(self, *, service: int, name: str, job_id: int) -> None:
        """Makes `name` resolve to the service's ready replicas, where the cluster has names for services.

        `job_id` is a current or former replica. Idempotent.
        """

    def withdraw(self, *, service: int, name: str, job_id: int) -> None:
        """Removes the name that `announce` created. Idempotent."""

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int = 0) -> LogChunk:
        """Returns up to `limit` bytes of a rank's log from byte `offset`.

        The chunk is complete once the log has everything of all attempts up to `last_attempt`.
        """

    def log_size(self, *, job_id: int, rank: int) -> int:
        """Returns the present size of a rank's log in bytes; 0 when there is none."""

    def log_ranks(self, *, job_id: int) -> Sequence[int]:
        """Returns the ranks that have a log."""

    def changes(self, *, timeout: float) -> Generator[None, None, None]:
        """Yields whenever something may have changed, and at least every `timeout` seconds."""


class BackendError(Exception):
    """The backend could not carry out an order. The message says why, in words for users."""


class LogUnreadable(BackendError):
    """A log exists but cannot be read. The message says why, in words for users."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The log cannot be read: {why}.")


class Unanswered(BackendError):
    """The cluster did not answer, so whether the order was carried out is unknown. The order itself may be valid."""
