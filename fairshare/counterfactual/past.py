"""What really happened on a shared cluster: its machines, its tenants, and every turn of their jobs.

Times are seconds since the period began. Tenants, generations and nodes are indices; `key` is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What kept a job from running while it would have run, or been done, on its tenant's private cluster."""

    OVER_BORROWING = "over_borrowing"  # others held more than their tickets' share, and its tenant less
    FRAGMENTATION = "fragmentation"  # enough GPUs were free, but not together as the gang needs them
    RESERVATION = "reservation"  # free GPUs were kept for another gang until it had all of its own
    PRIORITY = "priority"  # its tenant had its share: own other jobs went first
    FAILURE = "failure"  # its own attempts failed
    HARDWARE = "hardware"  # nodes were down or drained, or GPUs of theirs had failed
    QUOTA = "quota"  # a quota of GPUs at once, or of GPU-hours, was used up
    IDLE_LIMIT = "idle_limit"  # a limit left it to GPUs that nobody else wanted, and there were none
    PAUSE = "pause"  # the cluster was paused
    SLOWER_GPUS = "slower_gpus"  # it ran on a slower generation than it would have had
    SWITCHING = "switching"  # it was stopped and started more often
    LOST_WORK = "lost_work"  # what it had done was lost, and done again
    UNEXPLAINED = "unexplained"  # free GPUs would have held it


@dataclass(frozen=True, slots=True)
class Turn:
    """A gang held GPUs. From `promised` on they were kept for it as they came free; all workers ran at `ready`.

    `failed`: it could not be started, or did not last, and nothing was done in it. `lost_from`: what it did from
    then on was lost, and a later turn did it again.
    """

    generation: int
    begins: float
    ready: float
    ends: float
    nodes: tuple[int, ...]  # of each worker
    failed: bool = False
    promised: float | None = None
    lost_from: float | None = None

    @property
    def ran(self) -> float:
        """Seconds in which all workers ran."""
        return self.ends - self.ready

    @property
    def lost(self) -> float:
        """Seconds of these whose work was done again."""
        return 0.0 if self.lost_from is None else max(self.ends - max(self.lost_from, self.ready), 0.0)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """For a reason of its own a job could not start, whatever was free; or, with IDLE_LIMIT, only on what was."""

    begins: float
    ends: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job of the period. `speeds`: how fast on each generation, 0 where it may not run; `ended`: None if not yet.

    `runs_to_its_end`: it ended when its work was done, not when somebody or a clock said so. `carried`: it came
    before the period, and its turns are only those within; it takes its place but is not judged. `preemptible`: it
    took no part in the sharing, so that neither it nor its tenant's other jobs are compared with it.
    """

    key: int
    tenant: int
    user: int  # among those of its tenant
    arrival: float
    workers: int
    gpus_per_worker: int
    speeds: tuple[float, ...]
    priority: int = 0
    turns: tuple[Turn, ...] = ()
    ended: float | None = None
    runs_to_its_end: bool = True
    carried: bool = False
    preemptible: bool = False
    held_back: tuple[HeldBack, ...] = ()

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker


@dataclass(frozen=True, slots=True)
class NodeState:
    """From `at` on a node has `gpus`, of which `usable` may be given to gangs or are held by them."""

    at: float
    node: int
    generation: int
    gpus: int
    usable: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota of GPUs at once, in force for some time: what `tenants` may hold together of a generation, or (None) of
    all; or what one of their users may, as counted within its tenant.

    With `leaves_idle` gangs beyond it may hold GPUs that nobody else wants; those of jobs that take no part in the
    sharing do not count for it.
    """

    tenants: frozenset[int]
    generation: int | None
    gpus: float
    user: int | None = None
    begins: float = 0.0
    ends: float = math.inf
    leaves_idle: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How the cluster is scheduled; see fairshare.model.Settings."""

    quantum: float = 60.0
    ordering: str = "stride"
    min_hold: float = 0.0
    switch_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """A period of a shared cluster.

    `parts`: of each tenant the part of the cluster that its tickets are worth among all, together 1.
    `user_tickets`: of each tenant, the tickets of its users. `nodes` in the order of time.
    """

    ends: float
    generations: int
    parts: tuple[float, ...]
    user_tickets: tuple[tuple[float, ...], ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[PastJob, ...]
    limits: tuple[Limit, ...] = ()
    rules: Rules = Rules()
