"""Defines the input and the result of a simulation: jobs, machines, and the outcome of each job.

Times are in seconds since the simulation began. Generations are indices. Jobs are indices in the order of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job of a workload: a gang that arrives once and runs until its work is done.

    - `work`: run time in seconds at speed 1.
    - `speeds`: speed on each generation, 0 where the job may not run.
    - `account`: index of the owner.
    - `expected`: run time in seconds that the owner expects, or None.
    - `deadline`: time at which the job should have ended, or None.
    """

    arrival: float
    work: float
    workers: int = 1
    gpus_per_worker: int = 1
    speeds: tuple[float, ...] = (1.0,)
    account: int = 0
    priority: int = 0
    expected: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.arrival < 0 or self.work <= 0 or self.workers < 1 or self.gpus_per_worker < 1:
            raise ValueError(
                f"{self} cannot be replayed: arrival must not be negative, and work, workers and GPUs must be positive"
            )
        if not any(speed > 0 for speed in self.speeds):
            raise ValueError(f"{self} cannot run on any generation")

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker


@dataclass(frozen=True, slots=True)
class Machines:
    """The nodes of a cluster: the generation and the number of GPUs of each node."""

    node_generation: tuple[int, ...]
    node_gpus: tuple[int, ...]
    generations: int = 1

    @property
    def gpus(self) -> tuple[int, ...]:
        """Returns the total number of GPUs of each generation."""
        found = [0] * self.generations
        for generation, count in zip(self.node_generation, self.node_gpus, strict=True):
            found[generation] += count
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a running gang: its generation, and the node of each worker.

    `nodes` is empty in simulations that only count GPUs.
    """

    generation: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in which a gang held GPUs in one place."""

    job: int
    place: Placement
    begins: float
    ends: float


@dataclass(slots=True)
class JobOutcome:
    """The outcome of a job in a simulation: when it ran and ended, and what preemptions cost it."""

    first_start: float | None = None
    finish: float | None = None
    preemptions: int = 0  # number of stops before its end, to continue later or elsewhere
    moves: int = 0  # number of these stops after which it continued elsewhere without a wait
    lost: float = 0.0  # GPU-seconds that the gang held without progress
    spans: list[Span] = field(default_factory=list)

    def held(self, gpus: int) -> float:
        """Returns the GPU-seconds that the job held, if its gang has `gpus` GPUs."""
        return gpus * sum(span.ends - span.begins for span in self.spans)


class State(Protocol):
    """The current state of a simulation, as a scheduler sees it when it decides."""

    @property
    def now(self) -> float: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def jobs(self) -> Sequence[SimJob]: ...
    @property
    def active(self) -> Sequence[int]:
        """Returns the jobs that have arrived and have not ended, in the order of arrival."""

    @property
    def running(self) -> Mapping[int, Placement]: ...
    def remaining(self, job: int) -> float:
        """Returns the run time that the job still needs at speed 1, in seconds."""


class Scheduler(Protocol):
    """A scheduler for simulations.

    The simulation calls `decide` when a job arrives or ends, when machines change, and at the time that `ask_again`
    returned last.
    """

    def decide(self, state: State) -> Mapping[int, Placement]:
        """Returns the jobs that run from now on, each with its place. All other jobs wait, without loss of progress."""

    def ask_again(self, state: State) -> float | None:
        """Returns the time at which to call `decide` if nothing happens before. None means that this is not needed."""
