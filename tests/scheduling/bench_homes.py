"""Counts frozen gangs that lose their processes: `python -m tests.scheduling.bench_homes` simulates busy clusters.

Teams submit more than the clusters have, so gangs take turns, quantum by quantum, and each preempted gang is frozen. A
frozen gang that is picked again goes on if it gets the GPUs on which it was frozen. Otherwise its processes are lost.
GPUs are chosen as in rounds (scheduling/rounds/gpu_numbers.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from fairshare.model import NOWHERE, Settings
from fairshare.simulator.engine import Engine
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import Machines, Placement, SimJob, State
from scheduling.rounds.gpu_numbers import Gpu, GpuNumbers

# Workers, GPUs of a worker, and the probability of the shape.
SHAPES = ((1, 1, 0.5), (1, 2, 0.2), (1, 4, 0.15), (1, 8, 0.1), (2, 8, 0.05))
QUANTUM, HOURS = 300.0, 12
CLUSTERS = {
    "one GPU type, 8 nodes of 8 GPUs": Machines((0,) * 8, (8,) * 8),
    "two GPU types, 4 nodes of 8 GPUs each": Machines((0,) * 4 + (1,) * 4, (8,) * 8, generations=2),
    "one GPU type, 16 nodes of 4 GPUs": Machines((0,) * 16, (4,) * 16),
}


@dataclass
class Counted:
    """What happened to frozen gangs in a simulation, and what each team received."""

    resumed: int = 0  # frozen gangs that were picked again
    other_nodes: int = 0  # of these, gangs that were sent to other nodes
    other_gpus: int = 0  # of these, gangs that got other GPUs of the same nodes
    moved: int = 0  # running gangs that were stopped to go on elsewhere at once
    used: float = 0.0  # GPU-hours of all accounts, as a fraction of those that the cluster has
    first: float = 0.0  # of these, the fraction that the first half of the accounts had


class Freezing(LiveScheduler):
    """The live scheduler, with the GPUs of each gang. A preempted gang is frozen on its GPUs."""

    def __init__(self, machines: Machines, tickets: Tickets, settings: Settings, *, seed: int) -> None:
        super().__init__(machines, tickets, settings, seed=seed)
        self.counted = Counted()
        self._at: dict[int, list[Gpu]] = {}  # the GPUs of running gangs
        self._frozen: dict[int, tuple[Placement, list[Gpu]]] = {}

    def decide(self, state: State) -> Mapping[int, Placement]:
        running = state.running
        places = super().decide(state)
        active = set(state.active)
        self._frozen = {job: where for job, where in self._frozen.items() if job in active}
        gone = [job for job in self._at if places.get(job) != running.get(job) or job not in places]
        stopping: list[Gpu] = []
        for job in gone:
            gpus = self._at.pop(job)
            if job in active and job not in places:  # gangs that move are stopped, not frozen
                self._frozen[job] = running[job], gpus
                stopping += gpus
        held = {gpu for gpus in self._at.values() for gpu in gpus}
        open_ = {
            node: [number for number in range(size) if (node, number) not in held]
            for node, size in enumerate(state.machines.node_gpus)
        }
        numbers = GpuNumbers(open_, stopping, {job: gpus for job, (_, gpus) in self._frozen.items()})
        for job, place in sorted(places.items(), key=lambda one: one[0] not in self._frozen):
            if job in self._at:
                continue
            taken = numbers.take(job, place.nodes, state.jobs[job].gpus_per_worker)
            self._at[job] = [gpu for _, gpu in taken]
            if job in self._frozen:
                self._note(place, self._at[job], *self._frozen.pop(job))
        return places

    def _note(self, place: Placement, gpus: list[Gpu], home: Placement, former: list[Gpu]) -> None:
        self.counted.resumed += 1
        if sorted(place.nodes) != sorted(home.nodes):
            self.counted.other_nodes += 1
        elif sorted(gpus) != sorted(former):
            self.counted.other_gpus += 1


def workload(machines: Machines, load: float, seed: int, *, endless: bool) -> tuple[list[SimJob], Tickets]:
    """Returns jobs that need `load` times the GPU time that the machines have, and the tickets of their accounts.

    Either the jobs of four teams come and go, or each account has one job, which never ends (`endless`).
    """
    chance = np.random.default_rng(seed)
    shapes = [shape for shape in SHAPES if shape[1] <= max(machines.node_gpus)]
    often = np.array([part for _, _, part in shapes])
    left, jobs = load * sum(machines.node_gpus) * HOURS * 3600, list[SimJob]()
    while left > 0:
        workers, gpus, _ = shapes[int(chance.choice(len(shapes), p=often / often.sum()))]
        work = HOURS * 3600.0 if endless else float(chance.lognormal(8.2, 1.0))
        speeds = tuple(1.0 + k * float(chance.uniform(0.0, 1.0)) for k in range(machines.generations))
        arrival = float(chance.uniform(0, QUANTUM if endless else HOURS * 3600))
        account = len(jobs) if endless else int(chance.integers(4))
        jobs.append(SimJob(arrival, work, workers, gpus, speeds, account=account))
        left -= work * workers * gpus
    accounts = len(jobs) if endless else 4
    tickets = tuple(float(chance.integers(1, 4)) for _ in range(accounts))
    return sorted(jobs, key=lambda job: job.arrival), Tickets(
        (NOWHERE,) * accounts, tickets, (True,) * accounts
    )


def simulate(machines: Machines, load: float, seed: int, *, endless: bool) -> Counted:
    jobs, tickets = workload(machines, load, seed, endless=endless)
    scheduler = Freezing(machines, tickets, Settings(quantum=QUANTUM), seed=seed)
    played = Engine(machines, jobs, scheduler, switch_cost=5.0).run(until=HOURS * 3600)
    counted, hours = scheduler.counted, np.zeros(len(tickets.tickets))
    for job, fate in zip(jobs, played.fates, strict=True):
        hours[job.account] += fate.held(job.gpus) / 3600
    counted.moved = played.moves
    counted.used = float(hours.sum()) / (sum(machines.node_gpus) * HOURS)
    counted.first = float(hours[: len(hours) // 2].sum() / hours.sum())
    return counted


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--load", type=float, default=1.5, help="GPU time that jobs need, as a multiple")
    asked = options.parse_args()
    for (name, machines), endless in product(CLUSTERS.items(), (True, False)):
        found = [simulate(machines, asked.load, seed, endless=endless) for seed in range(asked.seeds)]
        resumed, moved = sum(one.resumed for one in found), sum(one.moved for one in found)
        nodes, gpus = sum(one.other_nodes for one in found), sum(one.other_gpus for one in found)
        sys.stdout.write(
            f"{name}, jobs that {'never end' if endless else 'come and go'}: {resumed} frozen gangs were picked again,"
            f" {nodes} on other nodes and {gpus} on other GPUs, so {(nodes + gpus) / max(1, resumed):.1%} lost their"
            f" processes; {moved} running gangs moved; {np.mean([one.used for one in found]):.2%} of the GPU time was"
            f" used, {np.mean([one.first for one in found]):.2%} of this by the first half of the accounts\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
