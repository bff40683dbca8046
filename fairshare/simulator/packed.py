"""A simple scheduler for comparison: first come, first served, as a cluster without fair shares would use."""

from __future__ import annotations

from collections.abc import Mapping

from fairshare.simulator.model import Placement, State


class FirstCome:
    """A scheduler that starts gangs in the order of arrival and never preempts. No gang overtakes a waiting gang.

    Each worker is placed on the fullest node that has room, so that other nodes stay empty for large workers.
    """

    def decide(self, state: State) -> Mapping[int, Placement]:
        places = dict(state.running)
        waiting = [job for job in state.active if job not in places]
        if not waiting:
            return places
        free = list(state.machines.node_gpus)
        for job, held in places.items():
            for node in held.nodes:
                free[node] -= state.jobs[job].gpus_per_worker
        for job in waiting:
            place = _place(state, job, free)
            if place is None:
                break
            places[job] = place
        return places

    def ask_again(self, state: State) -> float | None:
        return None


def _place(state: State, job: int, free: list[int]) -> Placement | None:
    """Returns a place for the gang and subtracts its GPUs from `free`, the free GPUs of each node.

    Returns None and changes nothing if the gang does not fit.
    """
    wanted, machines = state.jobs[job], state.machines
    for generation in sorted(range(machines.generations), key=lambda k: -wanted.speeds[k]):
        if wanted.speeds[generation] <= 0:
            continue
        left = free.copy()
        nodes: list[int] = []
        for _ in range(wanted.workers):
            room = [
                (gpus, node)
                for node, gpus in enumerate(left)
                if gpus >= wanted.gpus_per_worker and machines.node_generation[node] == generation
            ]
            if not room:
                break
            node = min(room)[1]
            left[node] -= wanted.gpus_per_worker
            nodes.append(node)
        if len(nodes) == wanted.workers:
            free[:] = left
            return Placement(generation, tuple(nodes))
    return None
