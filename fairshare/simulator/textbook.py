"""Schedulers from the literature, for comparison. They treat the cluster as one pool of GPUs of one generation, without
nodes.

These are: first in, first out (FIFO); FIFO that skips jobs that do not fit; shortest remaining time first; and shortest
remaining service first, where service is time multiplied by GPUs. They are defined in Tiresias (NSDI '19), section 6.
In details they follow the simulator of that paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairshare.simulator.model import Placement, State

HERE = Placement(0)


class Fifo:
    """A scheduler that starts jobs in the order of arrival and never preempts.

    If a job does not fit, later jobs wait, too. With `skips`, they may start before it.
    """

    def __init__(self, *, skips: bool = False) -> None:
        self._skips = skips

    def decide(self, state: State) -> Mapping[int, Placement]:
        places = dict(state.running)
        free = state.machines.gpus[0] - sum(state.jobs[job].gpus for job in places)
        for job in state.active:
            if job in places:
                continue
            if state.jobs[job].gpus <= free:
                places[job] = HERE
                free -= state.jobs[job].gpus
            elif not self._skips:
                break
        return places

    def ask_again(self, state: State) -> float | None:
        return None


class ShortestFirst:
    """A scheduler that runs the jobs with the least remaining time, and preempts other jobs for them.

    With `by_service`, remaining time is multiplied by the job's GPUs. Jobs with equal values keep their previous order;
    new jobs come last.
    """

    def __init__(self, *, by_service: bool = False) -> None:
        self._by_service = by_service
        self._order: list[int] = []

    def decide(self, state: State) -> Mapping[int, Placement]:
        places: dict[int, Placement] = {}
        free = state.machines.gpus[0]
        for job in self._sorted(state):
            if state.jobs[job].gpus <= free:
                places[job] = HERE
                free -= state.jobs[job].gpus
        return places

    def _sorted(self, state: State) -> Sequence[int]:
        def left(job: int) -> float:
            return state.remaining(job) * (state.jobs[job].gpus if self._by_service else 1)

        active, known = set(state.active), set(self._order)
        there = [job for job in self._order if job in active]
        self._order = sorted([*there, *(job for job in state.active if job not in known)], key=left)
        return self._order

    def ask_again(self, state: State) -> float | None:
        return None
