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
FIRST, LATER = 0, 1


@dataclass(slots=True, eq=False)
class Made:
    """A forecast of one job, and what came of it."""

    job: int
    stage: int  # FIRST or LATER
    at: float
    centre: float
    spread: float
    earliest: float
    latest: float
    naive: tuple[float, float]
    waited: float = math.nan  # NaN while it waits

    @property
    def holds(self) -> bool:
        return self.earliest <= self.waited <= self.latest


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

    def __init__(self, work: Workload, *, seed: int = 0, scenarios: int = SCENARIOS) -> None:
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
        self.made: list[Made] = []
        self.margins = [calibration.Margins(), calibration.Margins()]  # by stage
        self._unknown_below: list[Made] = []
        self._unknown_above: list[Made] = []
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
            if job not in self._started and self._is_due(job, state.now)
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
        past = PastRunTimes.of(
            np.array([work.jobs[job].work for job in recent], dtype=np.float64),
            np.array([work.groups[job] for job in recent], dtype=np.int64).reshape(
                len(recent), len(work.groups[0])
            ),
        )
        groups = np.array([work.groups[job] for job in active], dtype=np.int64)
        elapsed = np.array([work.jobs[job].work - state.remaining(job) for job in active])
        situation = self.situation()
        waits = []
        for _ in range(self._scenarios):
            self._noise += 1
            chance = np.random.Generator(np.random.PCG64(self._noise))
            left = past.remaining(groups, elapsed, chance)
            waits.append(sample_starts(situation, due, left, seed=self._noise))
        expected = calibration.summarize(np.array(waits), quantum=quantum, horizon=HORIZON)
        naive = self._naive()
        self._learn(state.now)
        for n, place in enumerate(due):
            job = active[place]
            stage = LATER if job in self._open else FIRST
            mine = calibration.Expected(expected.centre[n : n + 1], expected.spread[n : n + 1])
            earliest, latest = self.margins[stage].interval(mine, quantum=quantum)
            one = Made(
                job, stage, state.now, float(mine.centre[0]), float(mine.spread[0]), float(earliest[0]),
                float(latest[0]), naive,
            )  # fmt: skip
            self.made.append(one)
            self._unknown_below.append(one)
            self._unknown_above.append(one)
            self._open.setdefault(job, []).append(one)

    def _learn(self, now: float) -> None:
        """Moves the margins by all outcomes that are known at `now`, in the order in which they became known."""
        known = []
        for one in self._unknown_below:
            ends = one.at + min(one.earliest, math.inf if math.isnan(one.waited) else one.waited)
            known += [(ends, one, True)] if ends <= now else []
        for one in self._unknown_above:
            ends = one.at + min(one.latest, math.inf if math.isnan(one.waited) else one.waited)
            known += [(ends, one, False)] if ends <= now else []
        for _, one, is_below in sorted(known, key=lambda found: found[0]):
            had = self.margins[one.stage]
            if is_below:
                self.margins[one.stage] = had.after_below(missed=one.waited < one.earliest)
                self._unknown_below.remove(one)
            else:
                self.margins[one.stage] = had.after_above(missed=not one.waited <= one.latest)
                self._unknown_above.remove(one)

    def _naive(self) -> tuple[float, float]:
        """Returns the interval that holds 80 % of the last 100 waits of jobs that have started."""
        waits = [wait for wait in self._waits if wait > 0][-100:]
        if len(waits) < 10:
            return 0.0, math.inf
        low, high = np.quantile(waits, [0.1, 0.9])
        return float(low), float(high)


def forecasts_of(work: Workload, *, seed: int = 0, scenarios: int = SCENARIOS) -> list[Made]:
    """Returns all forecasts of a replay of `work` until its last job has ended."""
    scheduler = Forecaster(work, seed=seed, scenarios=scenarios)
    Engine(work.machines, work.jobs, scheduler).run()
    return scheduler.made
