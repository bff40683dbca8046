"""Defines what happened on a shared cluster: its machines, its tenants, and every attempt of their jobs.

Times are in seconds since the period began. Tenants, generations and nodes are indices. `key` belongs to the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a job did not run while it would have run, or been done, on its tenant's private cluster."""

    OVER_BORROWING = "over_borrowing"  # others held more than their fair share, and its tenant less
    FRAGMENTATION = "fragmentation"  # enough GPUs were free, but not together as the gang needs them
    RESERVATION = "reservation"  # free GPUs were reserved for another gang until it had all of its GPUs
    PRIORITY = "priority"  # its tenant had its share; the tenant's other jobs went first
    FAILURE = "failure"  # its own attempts failed
    HARDWARE = "hardware"  # nodes were down or drained, or some of their GPUs had failed
    QUOTA = "quota"  # a limit of GPUs at once, or of GPU-hours, was reached
    IDLE_LIMIT = "idle_limit"  # beyond a limit it could use only idle GPUs, and there were none
    PAUSE = "pause"  # the cluster was paused
    SLOWER_GPUS = "slower_gpus"  # it ran on a slower generation than it would have had
    SWITCHING = "switching"  # it was stopped and started more often
    LOST_WORK = "lost_work"  # work was lost and repeated
    UNEXPLAINED = "unexplained"  # enough GPUs were free for it


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt: an interval in which a gang held GPUs.

    From `reserved` on, free GPUs were reserved for it; all workers ran from `ready` on. `failed`: it did not start,
    or did not last, and made no progress. `lost_from`: its work from then on was lost, and a later attempt repeated
    it.
    """

    generation: int
    begins: float
    ready: float
    ends: float
    nodes: tuple[int, ...]  # of each worker
    failed: bool = False
    reserved: float | None = None
    lost_from: float | None = None

    @property
    def ran(self) -> float:
        """Seconds in which all workers ran."""
        return self.ends - self.ready

    @property
    def lost(self) -> float:
        """Seconds of `ran` whose work was lost and repeated."""
        return 0.0 if self.lost_from is None else max(self.ends - max(self.lost_from, self.ready), 0.0)


@dataclass(frozen=True, slots=True)
class Ineligible:
    """An interval in which a job could not start for its own reason; with IDLE_LIMIT, only on free GPUs."""

    begins: float
    ends: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job of the period, with its attempts.

    `speeds` are its speeds by generation, 0 where it may not run. `ended` is None while it has not ended.
    `runs_to_its_end`: it ended when its work was done, not by a user or a time limit. `carried`: it came before the
    period, and only attempts within the period are listed; it takes part in the replay but is not judged.
    `preemptible`: it was preemptible, so that it is left out of the comparison.
    """

    key: int
    tenant: int
    user: int  # among those of its tenant
    arrival: float
    workers: int
    gpus_per_worker: int
    speeds: tuple[float, ...]
    priority: int = 0
    attempts: tuple[Attempt, ...] = ()
    ended: float | None = None
    runs_to_its_end: bool = True
    carried: bool = False
    preemptible: bool = False
    ineligible: tuple[Ineligible, ...] = ()

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node from `at` on: it has `gpus`, of which `usable` may be given to gangs or are held by them."""

    at: float
    node: int
    generation: int
    gpus: int
    usable: int


@dataclass(frozen=True, slots=True)
class PastLimit:
    """A limit of GPUs at once, in force for some time.

    It bounds what `tenants` hold together of a generation (None: of all), or what one of their users holds, an index
    within its tenant. With `leaves_idle`, gangs beyond the limit may hold idle GPUs, and preemptible jobs do not
    count towards it.
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

    `parts` is the fraction of the cluster that each tenant's tickets are worth among all; they sum to 1.
    `user_tickets` are the tickets of each tenant's users. `nodes` is in the order of time.
    """

    ends: float
    generations: int
    parts: tuple[float, ...]
    user_tickets: tuple[tuple[float, ...], ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[PastJob, ...]
    limits: tuple[PastLimit, ...] = ()
    rules: Rules = Rules()
