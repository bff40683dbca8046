"""The simulator's event loop: arrivals and ends of jobs, changes of machines, and times at which the scheduler
decides."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairshare.simulator.model import JobOutcome, Machines, Placement, Scheduler, SimJob, Span


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a simulation: the outcome of every job, in the order of the workload, and the number of
    decisions."""

    fates: Sequence[JobOutcome]
    decisions: int

    @property
    def moves(self) -> int:
        """Returns how often gangs moved to other GPUs and continued immediately, without waiting."""
        return sum(fate.moves for fate in self.fates)

    @property
    def switches(self) -> int:
        """Returns how often gangs were preempted: stopped before their end. Moves to other GPUs are included."""
        return sum(fate.preemptions for fate in self.fates)

    @property
    def lost(self) -> float:
        """Returns the GPU-seconds that gangs held without progress, because they were starting, resuming or moving."""
        return math.fsum(fate.lost for fate in self.fates)

    def mean_completion(self, jobs: Sequence[SimJob]) -> float:
        """Returns the mean seconds from arrival to end, over the jobs that ended. At least one job must have ended.

        `jobs` is the workload of the simulation.
        """
        took = [
            fate.finish - job.arrival
            for job, fate in zip(jobs, self.fates, strict=True)
            if fate.finish is not None
        ]
        return math.fsum(took) / len(took)

    def makespan(self, jobs: Sequence[SimJob]) -> float:
        """Returns the seconds from the first arrival to the last end. At least one job must have ended.

        `jobs` is the workload of the simulation.
        """
        ends = [fate.finish for fate in self.fates if fate.finish is not None]
        return max(ends) - min(job.arrival for job in jobs)


class _Run:
    """The current attempt of a running gang, from its start until it ends or is stopped."""

    __slots__ = ("place", "ready", "remaining", "since", "speed")

    def __init__(
        self, place: Placement, *, since: float, ready: float, speed: float, remaining: float
    ) -> None:
        self.place, self.since, self.ready, self.speed, self.remaining = place, since, ready, speed, remaining

    def left(self, now: float) -> float:
        return self.remaining - max(0.0, now - self.ready) * self.speed

    @property
    def end(self) -> float:
        return self.ready + self.remaining / self.speed


class Engine:
    """A simulation of a workload under a scheduler.

    A gang holds its GPUs without progress for some seconds in three situations:
    - `start_cost`: at its first start. The default is `switch_cost`.
    - `switch_cost`: when it resumes after it was stopped.
    - `move_cost`: when it moves to other GPUs without waiting. The default is `switch_cost`.

    `changes`: pairs (time, machines from then on), sorted by time. The nodes stay the same, only their numbers of GPUs
    change. If a node then has too few GPUs, the gangs that started last are stopped first. They lose no progress.
    """

    def __init__(
        self,
        machines: Machines,
        jobs: Sequence[SimJob],
        scheduler: Scheduler,
        *,
        switch_cost: float = 0.0,
        start_cost: float | None = None,
        move_cost: float | None = None,
        changes: Sequence[tuple[float, Machines]] = (),
    ) -> None:
        self.machines, self.jobs, self.now = machines, jobs, 0.0
        self._scheduler, self._switch_cost = scheduler, switch_cost
        self._start_cost = switch_cost if start_cost is None else start_cost
        self._move_cost = switch_cost if move_cost is None else move_cost
        self._fates = [JobOutcome() for _ in jobs]
        self._left = [job.work for job in jobs]  # seconds of work left of waiting jobs
        self._active: dict[int, None] = {}  # in order of arrival
        self._runs: dict[int, _Run] = {}
        # A heap, sorted by time, then by number. Entries of attempts that are over stay in the heap and are skipped.
        self._ends: list[tuple[float, int, int, _Run]] = []
        self._turns = itertools.count()
        self._changes = list(reversed(changes))

    @property
    def active(self) -> Sequence[int]:
        return list(self._active)

    @property
    def running(self) -> Mapping[int, Placement]:
        return {job: run.place for job, run in self._runs.items()}

    def remaining(self, job: int) -> float:
        run = self._runs.get(job)
        return self._left[job] if run is None else run.left(self.now)

    def run(self, until: float = math.inf) -> Replay:
        """Simulates until all jobs have ended, or until the time `until`, and returns the result.

        If a job can never run, set `until`: without it, the simulation may never end.
        """
        arrivals = sorted(range(len(self.jobs)), key=lambda job: (self.jobs[job].arrival, job), reverse=True)
        decisions, again = 0, math.inf
        while True:
            arrival = self.jobs[arrivals[-1]].arrival if arrivals else math.inf
            moment = min(arrival, self._next_end(), again)
            if moment < math.inf or self._active:  # a change matters only while jobs are left
                moment = min(moment, self._next_change())
            if moment > until or moment == math.inf:
                break
            self.now = moment
            self._end_those_that_are_done()
            self._change_machines()
            while arrivals and self.jobs[arrivals[-1]].arrival <= moment:
                self._active[arrivals.pop()] = None
            self._apply(self._scheduler.decide(self))
            decisions += 1
            asks = self._scheduler.ask_again(self)
            again = math.inf if asks is None else asks
        if until < math.inf:
            self.now = until
        for job, run in self._runs.items():
            self._fates[job].spans.append(Span(job, run.place, run.since, self.now))
            self._fates[job].lost += self._lost(job, run)
        return Replay(self._fates, decisions)

    def _next_end(self) -> float:
        while self._ends and self._runs.get(self._ends[0][2]) is not self._ends[0][3]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def _next_change(self) -> float:
        return self._changes[-1][0] if self._changes else math.inf

    def _change_machines(self) -> None:
        while self._next_change() <= self.now:
            _, self.machines = self._changes.pop()
            left = list(self.machines.node_gpus)
            for job, run in list(self._runs.items()):  # in the order of their starts
                needs = Counter(run.place.nodes)
                each = self.jobs[job].gpus_per_worker
                if any(left[node] < count * each for node, count in needs.items()):
                    self._interrupt(job)
                    continue
                for node, count in needs.items():
                    left[node] -= count * each

    def _end_those_that_are_done(self) -> None:
        while self._next_end() <= self.now:
            _, _, job, _ = heapq.heappop(self._ends)
            self._stop(job)
            self._left[job] = 0.0
            del self._active[job]
            self._fates[job].finish = self.now

    def _apply(self, places: Mapping[int, Placement]) -> None:
        """Stops and starts gangs as the scheduler decided. All stops come first, so that their GPUs are free for the
        starts."""
        leave = [job for job, run in self._runs.items() if places.get(job) != run.place]
        for job in leave:
            self._interrupt(job)
        moved = set(leave)
        for job, place in places.items():
            if job not in self._runs:
                self._start(job, place, moves=job in moved)
        self._check()

    def _start(self, job: int, place: Placement, *, moves: bool) -> None:
        speed = self.jobs[job].speeds[place.generation]
        if job not in self._active or speed <= 0:
            raise ValueError(f"job {job} cannot run on generation {place.generation} now")
        fate = self._fates[job]
        cost = self._move_cost if moves else self._switch_cost
        if fate.first_start is None:
            fate.first_start, cost = self.now, self._start_cost
        fate.moves += moves
        ready = self.now + cost
        run = _Run(place, since=self.now, ready=ready, speed=speed, remaining=self._left[job])
        self._runs[job] = run
        heapq.heappush(self._ends, (run.end, next(self._turns), job, run))

    def _interrupt(self, job: int) -> None:
        self._left[job] = self._runs[job].left(self.now)
        self._fates[job].preemptions += 1
        self._stop(job)

    def _stop(self, job: int) -> None:
        run = self._runs.pop(job)
        self._fates[job].lost += self._lost(job, run)
        if self.now > run.since:
            self._fates[job].spans.append(Span(job, run.place, run.since, self.now))

    def _lost(self, job: int, run: _Run) -> float:
        """Returns the GPU-seconds that the gang has held in this attempt without progress, while it started, resumed or
        moved."""
        return self.jobs[job].gpus * (min(run.ready, self.now) - run.since)

    def _check(self) -> None:
        """Raises ValueError if the scheduler gave gangs more GPUs than a generation or a node has."""
        left = list(self.machines.gpus)
        nodes = list(self.machines.node_gpus)
        for job, run in self._runs.items():
            left[run.place.generation] -= self.jobs[job].gpus
            for node in run.place.nodes:
                nodes[node] -= self.jobs[job].gpus_per_worker
        if min(left) < 0 or min(nodes) < 0:
            raise ValueError(
                f"more GPUs are allocated than exist; free GPUs by generation: {left}; free GPUs by node: {nodes} "
                "(a negative number says how many GPUs are missing)"
            )
