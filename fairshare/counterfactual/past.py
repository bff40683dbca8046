"""Defines what happened on a shared cluster: its machines, its tenants, and every attempt of their jobs.

Times are in seconds since the period began. Tenants, generations and nodes are indices. `key` is the caller's
identifier of a job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a job waited or took longer than on its tenant's private cluster."""

    OVER_BORROWING = "over_borrowing"  # other tenants held more than their fair share, its tenant less
    FRAGMENTATION = "fragmentation"  # enough GPUs were free, but not together on nodes as the gang needs them
    RESERVATION = "reservation"  # free GPUs were reserved for another gang that still lacked some GPUs
    PRIORITY = "priority"  # the tenant had its share; other jobs of the tenant went first
    FAILURE = "failure"  # attempts of the job failed
    HARDWARE = "hardware"  # nodes were down or drained, or some of their GPUs had failed
    QUOTA = "quota"  # a limit of GPUs at once, or of GPU-hours, was reached
    IDLE_LIMIT = "idle_limit"  # beyond a limit the job could use only idle GPUs, and no GPUs were idle
    PAUSE = "pause"  # the cluster was paused
    SLOWER_GPUS = "slower_gpus"  # the job ran on a slower generation than it would have had
    SWITCHING = "switching"  # the job was stopped and started more often
    LOST_WORK = "lost_work"  # work was lost and repeated
    UNEXPLAINED = "unexplained"  # enough GPUs were free for the job


@dataclass(frozen=True, slots=True)
class Attempt:
    """An interval in which a gang held GPUs.

    Free GPUs were reserved for it from `reserved` on, and all workers ran from `ready` on. A `failed` attempt did
    not start, or stopped early, and made no progress. Work after `lost_from` was lost and repeated by a later
    attempt.
    """

    generation: int
    begins: float
    ready: float
    ends: float
    nodes: tuple[int, ...]  # node of each worker
    failed: bool = False
    reserved: float | None = None
    lost_from: float | None = None

    @property
    def ran(self) -> float:
        """Returns the seconds in which all workers ran."""
        return self.ends - self.ready

    @property
    def lost(self) -> float:
        """Returns the seconds of `ran` whose work was lost and repeated."""
        return 0.0 if self.lost_from is None else max(self.ends - max(self.lost_from, self.ready), 0.0)


@dataclass(frozen=True, slots=True)
class Ineligible:
    """An interval in which a job could not start because of its own state; with IDLE_LIMIT, except on free GPUs."""

    begins: float
    ends: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job of the period, with its attempts.

    `speeds` has its speed on each generation, 0 where it may not run. `ended` is None for a job that has not ended.
    `runs_to_its_end` is true for a job that ended because its work was done, not by a user or a time limit. A
    `carried` job arrived before the period, and only its attempts within the period are listed; it is replayed but
    not judged. A `preemptible` job is left out of the comparison.
    """

    key: int
    tenant: int
    user: int  # index within its tenant
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
    """The state of a node from `at` on: it has `gpus` GPUs, of which `usable` are held by gangs or may be given to
    gangs."""

    at: float
    node: int
    generation: int
    gpus: int
    usable: int


@dataclass(frozen=True, slots=True)
class PastLimit:
    """A limit of GPUs at once, in force from `begins` to `ends`.

    It limits the GPUs of a generation (None: of all generations) that the `tenants` hold together, or that one user
    holds, given by the user's index within the tenant. With `leaves_idle`, gangs beyond the limit may still hold
    idle GPUs, and preemptible jobs do not count towards it.
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
    """The settings that the cluster is scheduled by; see fairshare.model.Settings."""

    quantum: float = 60.0
    ordering: str = "stride"
    min_hold: float = 0.0
    switch_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """A period of a shared cluster.

    `parts` has the fraction of the cluster that each tenant's tickets are worth; the fractions sum to 1.
    `user_tickets` has the tickets of each tenant's users. `nodes` is sorted by time.
    """

    ends: float
    generations: int
    parts: tuple[float, ...]
    user_tickets: tuple[tuple[float, ...], ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[PastJob, ...]
    limits: tuple[PastLimit, ...] = ()
    rules: Rules = Rules()
