"""What a backend must do. Decisions never leak in here: it makes so what it is told, and reports.

Every call is absolute and fenced by the lease's epoch, so that doing it twice, late or after a crash
has the effect of once. Times are reported as ages on the machine's own monotonic clock, so that the
caller can place them on the database's clock whatever the wall clock did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

LONGEST_ANSWER = 10  # seconds


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a gang and the GPUs that it is given."""

    rank: int
    node: str
    gpu_indices: tuple[int, ...]
    gpu_uuids: tuple[str, ...]  # empty for virtual GPUs
    virtual_speed: float | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gang's first worker answers, and how it is asked whether it is ready.

    The program finds the port in PORT and FAIRLOT_PORT. Ready is what answered last, until it has not
    `failures` times in a row.
    """

    port: int  # as the user named it; where gangs share a machine each is given another
    path: str  # asked for by HTTP, any answer from 200 to 399 will do; empty: a connection is enough
    period_seconds: int
    failures: int
    service: int | None = None  # whose replica it is
    is_session: bool = False  # the portal leads people to it

    @property
    def timeout_seconds(self) -> int:
        """How long to wait for an answer."""
        return min(self.period_seconds, LONGEST_ANSWER)


@dataclass(frozen=True, slots=True)
class SecretFolder:
    """A secret of which each key is a file."""

    name: str
    path: str  # as the user named it: absolute, in every worker
    files: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What nobody may read but the gang itself: no report, log or error repeats any of it."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    folders: Sequence[SecretFolder] = ()
    image: str = field(default="", repr=False)  # a Docker configuration, to pull the image with

    def __bool__(self) -> bool:
        return bool(self.variables or self.folders or self.image)


NO_SECRETS = Secrets()


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that a gang uses."""

    name: str
    path: str  # absolute, in every worker
    source: str  # a claim in the tenant's namespace; locally a folder
    read_only: bool


@dataclass(frozen=True, slots=True)
class Container:
    """How each worker's container is run, where there are containers; None and "" are the cluster's own way."""

    cpus: float | None = None  # promised, and at most
    memory: int | None = None  # bytes, promised, and at most
    shared_memory: int | None = None  # bytes, at most; they count as memory
    working_directory: str = ""
    user_id: int | None = None
    group_id: int | None = None
    image_pull_policy: str = ""


USUAL = Container()


@dataclass(frozen=True, slots=True)
class Gang:
    """All that a backend needs to know to start a lease."""

    job_id: int
    epoch: int
    token: UUID
    generation: str
    command: Sequence[str]  # argv; a script comes as ["/bin/sh", "-c", …]
    environment_name: str  # one of the environments that the backend knows; empty: its first
    environment: Mapping[str, str]  # variables that the user asked for
    progress_pattern: str  # RE2; its first group is a number
    grace_seconds: float
    log_limit_bytes: int
    workers: Sequence[Worker]
    gpu_resource: str = ""  # what a pod asks for to get one of these GPUs; empty where there are no pods
    endpoint: Endpoint | None = None
    secrets: Secrets = NO_SECRETS
    mounts: Sequence[Mount] = ()
    container: Container = USUAL
    uid: int | None = None  # the team's user on the portal's machine; None where pods run the gang
    is_trusted: bool = False  # whose it is may do what the portal may
    may_have_begun: bool = False  # it was told to start before, and what became of that is not known


class Phase(StrEnum):
    """How a gang's processes are, all ranks together."""

    STARTING = "starting"  # not every worker runs yet
    RUNNING = "running"
    FROZEN = "frozen"
    ENDED = "ended"  # every process, forked ones too, is gone


class End(StrEnum):
    """Why a gang ended."""

    SUCCEEDED = "succeeded"  # every worker exited with 0 of its own accord
    FAILED = "failed"  # a worker exited with something else, or was killed by a signal not ours
    STOPPED = "stopped"  # because it was told to
    LOST = "lost"  # vanished without leaving a word: reboot, kill -9
    START_FAILED = "start_failed"  # a worker could not be started
    DELETED = "deleted"  # somebody removed it by other means than Fairlot


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one lease's processes. Ages count back from the moment of observing."""

    job_id: int
    epoch: int
    token: UUID
    phase: Phase
    running_age: float | None = None  # seconds since all workers ran
    frozen_age: float | None = None  # seconds since the last worker was frozen
    seen_age: float = 0.0  # seconds since the processes were last known to be alive
    ended_age: float | None = None  # seconds since the last process was gone
    end: End | None = None
    exit_code: int | None = None
    message: str = ""  # plain words for people
    steps: float | None = None  # last progress reported (rank 0)
    steps_age: float | None = None  # seconds since that report
    # Of what has an endpoint:
    ready_age: float | None = None  # seconds since it is ready; None while it is not
    address: str = ""  # host and port
    why_not_ready: str = ""  # plain words for people, where the backend knows


@dataclass(frozen=True, slots=True)
class Use:
    """What was seen of the use of a gang's GPUs until `age` seconds ago. Said again it has no effect."""

    token: UUID
    unused_for: float  # seconds without a moment of use, all of them measured; 0: they are used
    percent: float  # how busy they were when last seen: of the GPUs' time, or of one processor's
    by_gpus: bool  # measured at the GPUs; else by the processors' time that the processes took, and progress
    age: float = 0.0
    # Of `unused_for` the last seconds without any process on the GPUs; 0: there is one, or nobody can tell.
    processless_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs of one kind on one machine of a cluster that tells by itself what it has."""

    host: str
    resource: str  # what a pod asks for to get one
    product: str  # the hardware's own name for its generation, with the slice for parts of GPUs
    part: str  # the slice alone; empty for whole GPUs
    installed: int
    failed: int
    others: int  # in use by what is not Fairlot's
    is_up: bool
    why_not: str  # in plain words why nothing new may be put there now; empty when it may
    cpus: float | None = None  # that pods may have of the machine
    memory: int | None = None  # the same, in bytes


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a rank's log: `data` begins at byte `offset`; the next read goes on at `next_offset`."""

    rank: int
    offset: int
    next_offset: int
    data: bytes
    complete: bool  # nothing more will come of the turns that were asked about


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a cluster says about a job beyond how it is."""

    source: str  # the same whenever the same is said again
    job_id: int
    epoch: int
    text: str  # plain words for people
    age: float  # seconds since it happened


class Backend(Protocol):
    """Makes leases so."""

    orders_at_once: int  # that may be given side by side, from threads

    def learn(self, job_id: int) -> None:
        """Asks the database for what orders to a job need, so that a thread which has none may give the next."""

    def prepare(self) -> None:
        """Checks that the machine can do its work; raises BackendError with plain words if not."""

    def start(self, gang: Gang) -> None:
        """Starts all workers, or continues what already runs for this epoch; older epochs are void."""

    def stop(self, *, job_id: int, epoch: int, token: UUID, grace_seconds: float) -> None:
        """SIGTERM, then after `grace_seconds` SIGKILL, for every process of the lease. Returns at once."""

    def freeze(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Stops the processes where they are, to be continued by `thaw`. Returns at once."""

    def thaw(self, gang: Gang) -> None:
        """Continues frozen processes under a new epoch on the same GPUs."""

    def observe(self) -> Sequence[Observation]:
        """Everything known of leases that have not been forgotten."""

    def news(self) -> Sequence[Observation]:
        """Of all that `observe` would tell, at least what has changed since this was last asked."""

    def remarks(self) -> Sequence[Remark]:
        """What was said since this was last asked; after a restart also what was said before."""

    def staleness(self) -> float:
        """Seconds since what `observe` tells was surely true."""

    def use(self) -> Sequence[Use]:
        """What there is to tell of the use of GPUs since this was last asked; nothing where others measure it."""

    def tend(self) -> None:
        """Goes on with what orders have begun, as far as the cluster has come; asked for at every change."""

    def offers(self) -> Sequence[Offer] | None:
        """All GPUs that there are, if something about them is new; None else, and where people declare nodes."""

    def forget(self, *, job_id: int, epoch: int, token: UUID) -> None:
        """Drops what is kept about an ended lease; logs and checkpoints stay."""

    def remove_files(self, *, job_id: int) -> None:
        """Deletes logs and checkpoints of a job that has ended; twice has the effect of once."""

    def announce(self, *, service: int, name: str, job_id: int) -> None:
        """Where the cluster has names for services, `name` leads to ready replicas; `job_id` is one, or was.

        Twice has the effect of once.
        """

    def withdraw(self, *, service: int, name: str, job_id: int) -> None:
        """The name leads nowhere any more; twice has the effect of once."""

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_turn: int = 0) -> LogChunk:
        """Up to `limit` bytes of a rank's log from byte `offset`; complete when all turns to `last_turn` are in it."""

    def log_size(self, *, job_id: int, rank: int) -> int:
        """Bytes that a rank's log has now; 0 when there is none."""

    def log_ranks(self, *, job_id: int) -> Sequence[int]:
        """Ranks that have a log."""

    def changes(self, *, timeout: float) -> Iterator[None]:
        """Yields whenever something may have changed, and at the latest every `timeout` seconds."""


class BackendError(Exception):
    """The backend could not do what it was told; the message says why in plain words."""


class LogUnreadable(BackendError):
    """There is a log, and it cannot be read; the message says why in plain words."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The log cannot be read: {why}.")


class Unanswered(BackendError):
    """Nobody answered: whether it was done is unknown, and it says nothing about what was to be done."""
