"""What a replay is about: jobs that arrive and want GPU time, and what became of them.

Times are seconds since the replay began. A generation is an index; so is a job, in the order of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SimJob:
    """A gang that arrives once and runs to its end.

    `work` is for how many seconds it runs at speed 1; `speeds` how fast it is on each generation, 0 where it may
    not run. `account` is whom it belongs to. `expected` is for how long its owner thinks that it will run, and
    `deadline` the moment by which it should have ended, where they are known.
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
            raise ValueError(f"{self} cannot be replayed")
        if not any(speed > 0 for speed in self.speeds):
            raise ValueError(f"{self} may run nowhere")

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes with GPUs: of which generation, and how many."""

    node_generation: tuple[int, ...]
    node_gpus: tuple[int, ...]
    generations: int = 1

    @property
    def gpus(self) -> tuple[int, ...]:
        """Of each generation, all together."""
        found = [0] * self.generations
        for generation, count in zip(self.node_generation, self.node_gpus, strict=True):
            found[generation] += count
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gang runs; `nodes` has one for each worker, or none where nobody cares which."""

    generation: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A gang held its GPUs from one moment to another."""

    job: int
    place: Place
    begins: float
    ends: float


@dataclass(slots=True)
class Fate:
    """What became of one job."""

    first_start: float | None = None
    finish: float | None = None
    preemptions: int = 0  # how often it was stopped before its end, to go on later or elsewhere
    moves: int = 0  # how often of these it went on at once elsewhere
    lost: float = 0.0  # GPU-seconds that it held before it went on
    spans: list[Span] = field(default_factory=list)

    def held(self, gpus: int) -> float:
        """GPU-seconds."""
        return gpus * sum(span.ends - span.begins for span in self.spans)


class State(Protocol):
    """What a scheduler sees at a moment."""

    @property
    def now(self) -> float: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def jobs(self) -> Sequence[SimJob]: ...
    @property
    def active(self) -> Sequence[int]:
        """Jobs that have arrived and not ended, in the order of their arrival."""

    @property
    def running(self) -> Mapping[int, Place]: ...
    def remaining(self, job: int) -> float:
        """Seconds that it has still to run at speed 1."""


class Scheduler(Protocol):
    """Who runs where from now on. It is asked whenever a job arrives or ends, and when it wanted to be."""

    def decide(self, state: State) -> Mapping[int, Place]:
        """The place of each job that runs; the others wait, and lose no progress."""

    def ask_again(self, state: State) -> float | None:
        """The moment at which it wants to be asked though nothing happened; None: not at all."""
