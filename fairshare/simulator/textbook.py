"""The textbook's schedulers, on GPUs of one kind that are only counted.

First in, first out; the same without waiting for what does not fit; shortest remaining time first; shortest
remaining service (time times GPUs) first. Definitions: Tiresias (NSDI '19), section 6, as its simulator has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairshare.simulator.model import Place, State

HERE = Place(0)


class Fifo:
    """In the order of arrival; with `skips`, those that do not fit keep nobody behind them waiting."""

    def __init__(self, *, skips: bool = False) -> None:
        self._skips = skips

    def decide(self, state: State) -> Mapping[int, Place]:
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
    """Those with the least left go first, whoever runs now; with `by_service`, the least time times GPUs.

    Of two with as much left, the one that was before the other goes first again; who is new comes last.
    """

    def __init__(self, *, by_service: bool = False) -> None:
        self._by_service = by_service
        self._order: list[int] = []

    def decide(self, state: State) -> Mapping[int, Place]:
        places: dict[int, Place] = {}
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
