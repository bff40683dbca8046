"""Replays a workload under the live scheduler and forecasts, as a cluster does, when each waiting job will start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairshare.model import Settings
from fairshare.simulator.engine import Engine
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import Machines, Placement, SimJob, State
from fairshare.starts import calibration
from fairshare.starts.run_times import PastRunTimes
from fairshare.starts.scenarios import sample_starts

SCENARIOS = 3
HORIZON = 14 * 86400.0
# Number of past run times that a forecast uses.
MOST_PAST = 2000


@dataclass(slots=True, eq=False)
class Made:
    """A forecast of one job's start as simulations gave it, and what came of it. Times are in seconds."""

    job: int
    at: float
    age: float  # how long the job had waited
    expected: float
    spread: float
    naive: tuple[float, float]
    waited: float = math.nan  # from the forecast to the start; NaN while the job waits


@dataclass(frozen=True, slots=True)
class Judged:
    """A forecast with the interval that was known when it was made: its start after the forecast, and its end."""

    made: Made
    earliest: float
    latest: float

    @property
    def is_first(self) -> bool:
        return self.made.age <= 0

    @property
    def holds(self) -> bool:
        return self.earliest <= self.made.waited <= self.latest


@dataclass
class Workload:
    """Jobs to replay, the machines, and what a forecast may know of each job."""

    machines: Machines
    jobs: Sequence[SimJob]
    groups: Sequence[tuple[int, ...]]  # groups of each job for its run time, from narrow to wide
    quantum: float = 60.0
    tickets: tuple[float, ...] = field(default=())


class Forecaster(LiveScheduler):
    """The live scheduler, which makes a forecast for each job that a round leaves waiting, and again when the job has
    waited twice as long."""

    def __init__(
        self, work: Workload, *, seed: int = 0, scenarios: int = SCENARIOS, share: float = 1.0
    ) -> None:
        teams = max(job.account for job in work.jobs) + 1
        tickets = work.tickets or (100.0,) * teams
        super().__init__(
            work.machines,
            Tickets((-1,) * teams, tickets, (False,) * teams),
            Settings(quantum=work.quantum, trading=False),
            seed=seed,
            asks_idly=False,
        )
        self._work, self._scenarios, self._noise = work, scenarios, seed
        chance = np.random.Generator(np.random.PCG64(seed))
        self._chosen = chance.random(len(work.jobs)) < share
        self.made: list[Made] = []
        self._open: dict[int, list[Made]] = {}
        self._started: set[int] = set()
        self._before: dict[int, None] = {}
        self._ended: list[int] = []
        self._waits: list[float] = []

    def decide(self, state: State) -> Mapping[int, Placement]:
        places = super().decide(state)
        active = list(state.active)
        gone = self._before.keys() - set(active)
        self._ended += sorted(gone)
        self._before = dict.fromkeys(active)
        for job in places:
            if job not in self._started:
                self._started.add(job)
                self._waits.append(state.now - self._work.jobs[job].arrival)
                for one in self._open.pop(job, ()):
                    one.waited = state.now - one.at
        due = [
            place
            for place, job in enumerate(active)
            if job not in self._started and self._chosen[job] and self._is_due(job, state.now)
        ]
        if due:
            self._forecast(state, active, due)
        return places

    def _is_due(self, job: int, now: float) -> bool:
        had = self._open.get(job)
        return not had or now - had[0].at >= max(2 * (had[-1].at - had[0].at), 4 * self._work.quantum)

    def _forecast(self, state: State, active: list[int], due: list[int]) -> None:
        work, quantum = self._work, self._work.quantum
        recent = self._ended[-MOST_PAST:]
        groups = np.array([work.groups[job] for job in active], dtype=np.int64)
        elapsed = np.array([work.jobs[job].work - state.remaining(job) for job in active])
        ended = np.array([work.groups[job] for job in recent], dtype=np.int64).reshape(-1, groups.shape[1])
        past = PastRunTimes.of(
            np.concatenate([np.array([work.jobs[job].work for job in recent]), elapsed]),
            np.concatenate([ended, groups]),
            np.arange(len(recent) + len(active)) < len(recent),
        )
        situation = self.situation()
        waits = []
        for _ in range(self._scenarios):
            self._noise += 1
            chance = np.random.Generator(np.random.PCG64(self._noise))
            left = past.remaining(groups, elapsed, chance)
            waits.append(sample_starts(situation, due, left, seed=self._noise))
        expected = calibration.expected_of(np.array(waits), quantum=quantum, horizon=HORIZON)
        naive = self._naive()
        sides = (expected.wait.tolist(), expected.spread.tolist())
        for place, seconds, spread in zip(due, *sides, strict=True):
            had = self._open.setdefault(active[place], [])
            age = state.now - had[0].at if had else 0.0
            had.append(Made(active[place], state.now, age, seconds, spread, naive))
            self.made.append(had[-1])

    def _naive(self) -> tuple[float, float]:
        """Returns the interval that holds 80 % of the last 100 waits of jobs that have started."""
        waits = [wait for wait in self._waits if wait > 0][-100:]
        if len(waits) < 10:
            return 0.0, math.inf
        low, high = np.quantile(waits, [0.1, 0.9])
        return float(low), float(high)


def forecasts_of(
    work: Workload, *, seed: int = 0, scenarios: int = SCENARIOS, share: float = 1.0
) -> list[Made]:
    """Returns the forecasts of a replay of `work` until its last job has ended, in the order of their times: those of
    all jobs, or of a random share of them.

    What a cluster has learned about forecasts changes no decision, so `judge` finds the intervals afterwards.
    """
    scheduler = Forecaster(work, seed=seed, scenarios=scenarios, share=share)
    Engine(work.machines, work.jobs, scheduler).run()
    return scheduler.made


def judge(made: Sequence[Made], *, quantum: float, share: float = 1.0) -> list[Judged]:
    """Returns the forecasts with the interval of each, which depends only on what was known at its time.

    The first forecasts are made without knowledge. `share`: the share of the jobs for which forecasts were made.
    """
    at, age, expected, spread, waited = (
        np.array([getattr(one, name) for one in made], dtype=np.float64)
        for name in ("at", "age", "expected", "spread", "waited")
    )
    shown = np.zeros((2, len(made)))
    judged: list[Judged] = []
    while len(judged) < len(made):
        first = len(judged)
        now, last = at[first], int(np.searchsorted(at, at[first], side="right"))
        before = slice(max(0, first - calibration.MOST_OUTCOMES), first)
        started = at[before] + waited[before] <= now
        ago = now - at[before]
        past = calibration.Outcomes(
            ago,
            expected[before],
            age[before],
            np.where(started, waited[before], ago),
            started,
            *shown[:, before],
        )
        now_expected = calibration.Expected(expected[first:last], spread[first:last])
        sides = calibration.intervals(now_expected, age[first:last], past, quantum=quantum, share=share)
        shown[:, first:last] = sides
        judged += [
            Judged(one, earliest, latest)
            for one, earliest, latest in zip(
                made[first:last], *(side.tolist() for side in sides), strict=True
            )
        ]
    return judged
