"""Defines the input and the outcome of a replay: jobs that arrive, machines, and the fate of each job.

Times are in seconds since the replay began. Generations are indices; jobs are indices in the order of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SimJob:
    """A gang that arrives once and runs to its end.

    `work` is its run time in seconds at speed 1. `speeds` has its speed on each generation, 0 where it may not run.
    `account` is its owner. `expected` is the run time that its owner expects, and `deadline` when it should
    have ended; None where unknown.
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
    """Nodes with GPUs: the generation and the number of GPUs of each node."""

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
    """Where a gang runs. `nodes` has the node of each worker; it is empty where nodes do not matter."""

    generation: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in which a gang held GPUs."""

    job: int
    place: Placement
    begins: float
    ends: float


@dataclass(slots=True)
class Fate:
    """The outcome of a job: when it ran and ended, and what preemptions cost it."""

    first_start: float | None = None
    finish: float | None = None
    preemptions: int = 0  # number of stops before its end, to continue later or elsewhere
    moves: int = 0  # number of these stops after which it continued elsewhere without a wait
    lost: float = 0.0  # GPU-seconds that the gang held without progress
    spans: list[Span] = field(default_factory=list)

    def held(self, gpus: int) -> float:
        """Returns the GPU-seconds that a gang of `gpus` GPUs held."""
        return gpus * sum(span.ends - span.begins for span in self.spans)


class State(Protocol):
    """The part of a replay's state that a scheduler can read when it decides."""

    @property
    def now(self) -> float: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def jobs(self) -> Sequence[SimJob]: ...
    @property
    def active(self) -> Sequence[int]:
        """Returns the jobs that have arrived and not ended, in the order of arrival."""

    @property
    def running(self) -> Mapping[int, Placement]: ...
    def remaining(self, job: int) -> float:
        """Returns the run time that the job still needs at speed 1, in seconds."""


class Scheduler(Protocol):
    """A scheduler, which decides the jobs that run.

    The engine calls `decide` when a job arrives or ends, and at the times that `ask_again` returned.
    """

    def decide(self, state: State) -> Mapping[int, Placement]:
        """Returns the place of each job that runs. All other jobs wait and lose no progress."""

    def ask_again(self, state: State) -> float | None:
        """Returns the time at which to call `decide` even if nothing happens before; None for never."""
