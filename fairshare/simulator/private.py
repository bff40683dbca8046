"""A tenant's private cluster: what its tickets would have bought, and what its own jobs would have done there.

The counterfactual of HiveD (OSDI '20, section 2: sharing anomaly) with tickets in place of a quota: a tenant
should not fare worse on the shared cluster than on machines of its own. It buys whole GPUs, of each generation its
tickets' part of what the cluster had; what is left by rounding down goes to the largest remainders, so that all
tenants together buy exactly what there is. They come in nodes as most of the cluster's are, and the rest that fills
none in a smaller one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Ints, Settings
from fairshare.simulator.engine import Engine
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import Fate, Machines, SimJob
from fairshare.simulator.past import Past, PastJob


def ticket_parts(parent: Sequence[int], tickets: Sequence[float]) -> list[float]:
    """What part of the whole each account's tickets are worth, level by level; parents come first.

    Nothing where nobody of a level has any.
    """
    siblings: dict[int, float] = {}
    for above, some in zip(parent, tickets, strict=True):
        siblings[above] = siblings.get(above, 0.0) + some
    parts: list[float] = []
    for above, some in zip(parent, tickets, strict=True):
        parts.append((1.0 if above == NOWHERE else parts[above]) * some / (siblings[above] or 1.0))
    return parts


def apportion(parts: Sequence[float], gpus: int) -> list[int]:
    """Whole GPUs by largest remainder (Hamilton); of equal remainders the first goes first."""
    exact = [part * gpus for part in parts]
    # What rounding in the parts took from a whole number is given back.
    whole = [math.floor(amount + 1e-9) for amount in exact]
    most_left = sorted(range(len(parts)), key=lambda i: (round(whole[i] - exact[i], 9), i))
    for i in most_left[: gpus - sum(whole)]:
        whole[i] += 1
    return whole


def usual_gpus(past: Past) -> Ints:
    """(K,) GPUs of each generation that the cluster had for most of the time since it had any of it."""
    found = np.zeros(past.generations, dtype=np.int64)
    for k in range(past.generations):
        lasted: dict[int, float] = {}
        of_node: dict[int, int] = {}
        last = 0.0
        for change in [one for one in past.nodes if one.generation == k]:
            at = min(max(change.at, 0.0), past.ends)
            if total := sum(of_node.values()):
                lasted[total] = lasted.get(total, 0.0) + at - last
            last = at
            of_node[change.node] = change.gpus
        if total := sum(of_node.values()):
            lasted[total] = lasted.get(total, 0.0) + past.ends - last
        found[k] = _median(lasted)
    return found


def _median(lasted: Mapping[int, float]) -> int:
    """The number that was there, or exceeded, for at least half of the time."""
    half, reached = sum(lasted.values()) / 2, 0.0
    for number in sorted(lasted, reverse=True):
        reached += lasted[number]
        if reached >= half:
            return number
    return 0


def usual_node(past: Past, generation: int) -> int:
    """GPUs of a node as most of the generation's are, of equally many the larger; 1 where none is known."""
    sizes: dict[int, int] = {}
    for change in past.nodes:
        if change.generation == generation and change.gpus:
            sizes[change.node] = change.gpus
    counted = Counter(sizes.values())
    return max(counted, key=lambda size: (counted[size], size), default=1)


@dataclass(frozen=True, slots=True)
class Purchase:
    """What each tenant buys: `gpus` (tenants, K), and of each generation the GPUs of a usual node."""

    gpus: Ints
    node_gpus: tuple[int, ...]

    @classmethod
    def of(cls, past: Past) -> Purchase:
        columns = [apportion(past.parts, gpus) for gpus in usual_gpus(past).tolist()]
        gpus = np.array(columns, dtype=np.int64).reshape(past.generations, len(past.parts)).T
        return cls(gpus, tuple(usual_node(past, k) for k in range(past.generations)))

    def machines(self, tenant: int) -> Machines:
        kinds: list[int] = []
        sizes: list[int] = []
        for k, gpus in enumerate(self.gpus[tenant].tolist()):
            whole, rest = divmod(gpus, self.node_gpus[k])
            found = [self.node_gpus[k]] * whole + [rest] * (rest > 0)
            kinds += [k] * len(found)
            sizes += found
        return Machines(tuple(kinds), tuple(sizes), len(self.node_gpus))


def work_of(job: PastJob, past: Past) -> float:
    """Seconds at speed 1 that it has to run, as far as what it took says.

    What it did in turns that failed, or did again later, was lost. It takes as long to get going for the first time as it took; what
    later starts took is the shared cluster's. A job that has not ended holds its GPUs for as long as we look, one
    that never ran is taken to need as long as it waited: both leave its tenant's other jobs less, not more.
    """
    if job.ended is None:
        return math.inf
    turns = [turn for turn in job.turns if not turn.failed]
    work = math.fsum((turn.ran - turn.lost) * job.speeds[turn.generation] for turn in turns)
    if turns:
        first = turns[0]
        start = first.ready - first.begins - past.rules.switch_cost
        work += max(start, 0.0) * job.speeds[first.generation]
    if work > 0:
        return work
    return max(job.ended - job.arrival, 1.0) * max(job.speeds)


def fits(job: PastJob, machines: Machines) -> bool:
    """Whether the gang could ever run there."""
    slots = [0] * machines.generations
    for kind, gpus in zip(machines.node_generation, machines.node_gpus, strict=True):
        slots[kind] += gpus // job.gpus_per_worker
    return any(speed > 0 and count >= job.workers for speed, count in zip(job.speeds, slots, strict=True))


def replay(past: Past, jobs: Sequence[PastJob], machines: Machines, tickets: Sequence[float]) -> list[Fate]:
    """What would have become of a tenant's jobs, all of which fit there, with nobody else on the machines.

    Its users share them by their tickets, as on the shared cluster; no quota holds for what is its own.
    """
    rules = past.rules
    settings = Settings(
        quantum=rules.quantum,
        draw="lottery" if rules.draw == "lottery" else "stride",
        trading=False,  # there is nobody to trade with
        residence=rules.residence,
        switch_cost=rules.switch_cost,
    )
    users = Tickets((NOWHERE,) * len(tickets), tuple(tickets), (False,) * len(tickets))
    simulated = [
        SimJob(
            arrival=job.arrival,
            work=work_of(job, past),
            workers=job.workers,
            gpus_per_worker=job.gpus_per_worker,
            speeds=job.speeds,
            account=job.user,
            priority=job.priority,
        )
        for job in jobs
    ]
    scheduler = LiveScheduler(machines, users, settings)
    engine = Engine(machines, simulated, scheduler, switch_cost=rules.switch_cost)
    return list(engine.run(past.ends).fates)
