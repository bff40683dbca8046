"""Defines the record of a period of a shared cluster: nodes, tenants, jobs, and every attempt of the jobs.

Times are in seconds since the period began. Tenants, generations and nodes are indices. A job's `key` is the identifier
that the caller uses for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """The reason why a job waited, or took longer than on its tenant's private cluster."""

    OVER_BORROWING = "over_borrowing"  # other tenants held more than their fair share, its tenant less
    FRAGMENTATION = "fragmentation"  # enough GPUs were free, but not together on nodes as the gang needs them
    RESERVATION = "reservation"  # free GPUs were reserved for another gang that still lacked some GPUs
    PRIORITY = "priority"  # the tenant had its share; other jobs of the tenant went first
    FAILURE = "failure"  # attempts of the job failed
    HARDWARE = "hardware"  # nodes were down or drained, or some of their GPUs had failed
    QUOTA = "quota"  # a limit of GPUs at once, or of GPU-hours, was reached
    IDLE_LIMIT = "idle_limit"  # beyond a limit the job could use only GPUs left over, and none were
    PAUSE = "pause"  # the cluster was paused
    SLOWER_GPUS = "slower_gpus"  # the job ran on a slower generation than it would have had
    SWITCHING = "switching"  # the job was stopped and started more often
    LOST_WORK = "lost_work"  # work was lost and repeated
    UNEXPLAINED = "unexplained"  # enough GPUs were free for the job


@dataclass(frozen=True, slots=True)
class Attempt:
    """An interval in which a gang held GPUs, from `begins` to `ends`.

    - `ready`: the time from which all workers ran.
    - `failed`: true if the attempt failed to start, or if its processes vanished soon after the start. The analysis
      assumes that such an attempt did no work.
    - `reserved`: the time at which the scheduler began to reserve free GPUs for the attempt. None if there was no
      reservation.
    - `lost_from`: work after this time was lost, and a later attempt repeated this work. None if no work was lost.
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
        """Returns the number of seconds for which all workers ran."""
        return self.ends - self.ready

    @property
    def lost(self) -> float:
        """Returns how many seconds of `ran` were lost, because a later attempt had to repeat the work."""
        return 0.0 if self.lost_from is None else max(self.ends - max(self.lost_from, self.ready), 0.0)


@dataclass(frozen=True, slots=True)
class Ineligible:
    """An interval in which a job could not start, or could start only on GPUs that nobody else could use.

    `cause` says why: the cluster was paused, a start had failed, or a limit was used up. The cause IDLE_LIMIT means
    that the job could start on GPUs that nobody else could use. With any other cause the job could not start.
    """

    begins: float
    ends: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that existed in the period, with its attempts.

    - `speeds`: relative speed on each generation, 0 where the job may not run.
    - `ended`: the time at which the job ended, or None if it has not ended.
    - `runs_to_its_end`: false if a user or a time limit ended the job before its work was done.
    - `carried`: true if the job arrived before the period. Only its attempts within the period are listed. The job is
      replayed, but not reported as late.
    - `preemptible`: true for a preemptible job. Such a job is left out of the comparison.
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

    def workers_in(self, attempt: Attempt) -> int:
        """Returns the workers of an attempt: at least `workers`, and more if the gang was elastic."""
        return max(self.workers, len(attempt.nodes))


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node from the time `at` on: it has `gpus` GPUs, of which gangs can use `usable`."""

    at: float
    node: int
    generation: int
    gpus: int
    usable: int


@dataclass(frozen=True, slots=True)
class PastLimit:
    """A limit on the GPUs held at the same time, in force from `begins` to `ends`.

    - `generation`: the generation that is limited. None means the sum over all generations.
    - `tenants`: the tenants that share the limit.
    - `user`: the user to whom the limit applies, as an index within the tenant. None means that the GPUs of all users
      are added up.
    - `leaves_idle`: if true, gangs beyond the limit may still use GPUs that nobody else can use, and preemptible jobs
      do not count towards the limit.
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
    """The scheduling settings of the cluster in the period. See fairshare.model.Settings."""

    quantum: float = 60.0
    ordering: str = "stride"
    min_hold: float = 0.0
    switch_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """The record of one period of a shared cluster.

    - `ends`: the end of the period, in seconds since its beginning.
    - `generations`: the number of generations.
    - `parts`: for each tenant, the fraction of the cluster that its tickets are worth. The fractions sum to 1.
    - `user_tickets`: for each tenant, the tickets of each of its users.
    - `nodes`: changes of nodes, sorted by time.
    """

    ends: float
    generations: int
    parts: tuple[float, ...]
    user_tickets: tuple[tuple[float, ...], ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[PastJob, ...]
    limits: tuple[PastLimit, ...] = ()
    rules: Rules = Rules()
