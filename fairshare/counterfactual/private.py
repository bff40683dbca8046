"""Builds a tenant's private cluster, the GPUs that its tickets would have bought, and replays the tenant's jobs on it.

A tenant should not fare worse on the shared cluster than on a private cluster of this size. HiveD (OSDI '20, section 2)
calls a violation a sharing anomaly. In HiveD a quota determines the size of the private cluster; here tickets do.

A tenant buys the fraction of each generation that its tickets are worth, in whole GPUs. Fractions of GPUs are rounded
by the largest-remainder method, so that all tenants together buy exactly the cluster. The GPUs are in nodes of the
cluster's usual size, and a smaller node for the rest. When the cluster gains or loses nodes, tenants buy or return GPUs
at that moment.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from fairshare.counterfactual.past import NodeState, Past, PastJob
from fairshare.model import NOWHERE, Ints, Settings
from fairshare.simulator.engine import Engine
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import JobOutcome, Machines, SimJob


def ticket_parts(parent: Sequence[int], tickets: Sequence[float]) -> list[float]:
    """Returns the fraction of the cluster that each account's tickets are worth.

    Each account's fraction is divided among its children by their tickets. The fraction is 0 for an account without
    tickets. Parents must precede their children in the arguments.
    """
    siblings: dict[int, float] = {}
    for above, some in zip(parent, tickets, strict=True):
        siblings[above] = siblings.get(above, 0.0) + some
    parts: list[float] = []
    for above, some in zip(parent, tickets, strict=True):
        parts.append((1.0 if above == NOWHERE else parts[above]) * some / (siblings[above] or 1.0))
    return parts


def apportion(parts: Sequence[float], gpus: int) -> list[int]:
    """Divides `gpus` whole GPUs in proportion to `parts`, by the largest-remainder method (Hamilton).

    If remainders are equal, earlier entries get the remaining GPUs.
    """
    exact = [part * gpus for part in parts]
    # The tolerance restores whole numbers that rounding errors of the parts made slightly smaller.
    whole = [math.floor(amount + 1e-9) for amount in exact]
    most_left = sorted(range(len(parts)), key=lambda i: (round(whole[i] - exact[i], 9), i))
    for i in most_left[: gpus - sum(whole)]:
        whole[i] += 1
    return whole


def usual_gpus(past: Past) -> Ints:
    """Returns the number of GPUs of each generation that the cluster usually had, as an array (K,).

    It is the median over the time in which the cluster had GPUs of the generation.
    """
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
    """Returns the largest number n such that the cluster had at least n GPUs for at least half of the time.

    `lasted` has, for each number of GPUs, the seconds for which the cluster had exactly that many.
    """
    half, reached = sum(lasted.values()) / 2, 0.0
    for number in sorted(lasted, reverse=True):
        reached += lasted[number]
        if reached >= half:
            return number
    return 0


def usual_node(past: Past, generation: int) -> int:
    """Returns the most common number of GPUs of a node of the generation.

    If two numbers are equally common, returns the larger one. Returns 1 if the generation has no nodes.
    """
    sizes: dict[int, int] = {}
    for change in past.nodes:
        if change.generation == generation and change.gpus:
            sizes[change.node] = change.gpus
    counted = Counter(sizes.values())
    return max(counted, key=lambda size: (counted[size], size), default=1)


def gpus_over_time(past: Past) -> list[tuple[float, tuple[int, ...]]]:
    """Returns pairs (time, GPUs of each generation from that time on), beginning with time 0.

    GPUs of drained and broken nodes are included.
    """
    totals = [0] * past.generations
    of_node: dict[int, NodeState] = {}
    found = [(0.0, tuple(totals))]
    for change in past.nodes:
        if (before := of_node.get(change.node)) is not None:
            totals[before.generation] -= before.gpus
        totals[change.generation] += change.gpus
        of_node[change.node] = change
        at = min(max(change.at, 0.0), past.ends)
        if at == found[-1][0]:
            found.pop()
        if not found or tuple(totals) != found[-1][1]:
            found.append((at, tuple(totals)))
    return found


# Pairs (moment, machines from that moment on), sorted by time; the first moment is 0.
MachinesOverTime: TypeAlias = Sequence[tuple[float, Machines]]


@dataclass(frozen=True, slots=True)
class Purchase:
    """The GPUs that each tenant's tickets would have bought.

    - `gpus` (tenants, K): GPUs of each tenant when the cluster has its usual size, the median over the period.
    - `node_gpus` (K,): GPUs of a usual node of each generation.
    - `over_time`: pairs (time, GPUs (tenants, K) from that time on), sorted by time.
    """

    gpus: Ints
    node_gpus: tuple[int, ...]
    over_time: tuple[tuple[float, Ints], ...]

    @classmethod
    def of(cls, past: Past) -> Purchase:
        apportioned = cache(lambda gpus: apportion(past.parts, gpus))

        def bought(totals: Sequence[int]) -> Ints:
            columns = [apportioned(gpus) for gpus in totals]
            return np.array(columns, dtype=np.int64).reshape(past.generations, len(past.parts)).T

        return cls(
            bought(usual_gpus(past).tolist()),
            tuple(usual_node(past, k) for k in range(past.generations)),
            tuple((since, bought(totals)) for since, totals in gpus_over_time(past)),
        )

    def at(self, moment: float) -> Ints:
        """Returns the GPUs that each tenant has of each generation at a moment, as an array (tenants, K)."""
        place = bisect_right(self.over_time, moment, key=itemgetter(0))
        return self.over_time[max(place - 1, 0)][1]

    def machines(self, tenant: int) -> MachinesOverTime:
        """Returns pairs (time, the tenant's nodes from that time on).

        All entries have the same list of nodes. A node has 0 GPUs before it is bought and after it is returned.
        """
        steps = [(since, gpus[tenant].tolist()) for since, gpus in self.over_time]
        most = [
            max(math.ceil(gpus[k] / self.node_gpus[k]) for _, gpus in steps)
            for k in range(len(self.node_gpus))
        ]
        kinds = tuple(k for k, count in enumerate(most) for _ in range(count))
        found: list[tuple[float, Machines]] = []
        for since, gpus in steps:
            sizes = [
                min(max(gpus[k] - i * self.node_gpus[k], 0), self.node_gpus[k])
                for k, count in enumerate(most)
                for i in range(count)
            ]
            machines = Machines(kinds, tuple(sizes), len(self.node_gpus))
            if not found or machines != found[-1][1]:
                found.append((since, machines))
        return found


def work_of(job: PastJob, past: Past) -> float:
    """Estimates the job's work from its attempts: the seconds that it has to run at speed 1.

    Failed attempts and repeated work do not count. Of the startup times, only that of the first attempt counts.

    There are two exceptions:
    - A job that has not ended has infinite work, so that it holds its GPUs until the period ends.
    - If a job ended without running, the time from its arrival to its end counts as work.
    """
    # Too much work delays the tenant's other jobs in the replay, so that their lateness is rather underestimated.
    if job.ended is None:
        return math.inf
    attempts = [attempt for attempt in job.attempts if not attempt.failed]
    # The replay runs elastic gangs at their least size, for which `speeds` are, too.
    work = math.fsum(
        (attempt.ran - attempt.lost) * job.speeds[attempt.generation] * job.workers_in(attempt) / job.workers
        for attempt in attempts
    )
    if attempts:
        # Later startups are due to preemptions on the shared cluster.
        first = attempts[0]
        start = first.ready - first.begins - past.rules.switch_cost
        work += max(start, 0.0) * job.speeds[first.generation]
    if work > 0:
        return work
    return max(job.ended - job.arrival, 1.0) * max(job.speeds)


def fits(job: PastJob, over_time: MachinesOverTime) -> bool:
    """Returns whether the gang fits on the machines at some moment after the job arrived.

    `over_time`: pairs (time, machines from that time on), sorted by time.
    """
    untils = [*(since for since, _ in over_time[1:]), math.inf]
    return any(
        until > job.arrival and _holds(machines, job)
        for (_, machines), until in zip(over_time, untils, strict=True)
    )


def _holds(machines: Machines, job: PastJob) -> bool:
    slots = [0] * machines.generations
    for kind, gpus in zip(machines.node_generation, machines.node_gpus, strict=True):
        slots[kind] += gpus // job.gpus_per_worker
    return any(speed > 0 and count >= job.workers for speed, count in zip(job.speeds, slots, strict=True))


def replay(
    past: Past, jobs: Sequence[PastJob], over_time: MachinesOverTime, tickets: Sequence[float]
) -> list[JobOutcome]:
    """Simulates a tenant's jobs alone on its private cluster and returns the outcome of each job.

    The tenant's users share the machines by tickets, as on the shared cluster. No limits apply. Every job must fit on
    the machines at some time.
    """
    rules = past.rules
    settings = Settings(
        quantum=rules.quantum,
        ordering="lottery" if rules.ordering == "lottery" else "stride",
        trading=False,  # because there is no other tenant
        min_hold=rules.min_hold,
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
    (_, machines), *changes = over_time
    # Skipping is an approximation where several users share generations of different speeds: they would take turns on
    # the faster one. It is exact for one generation.
    scheduler = LiveScheduler(machines, users, settings, asks_idly=False)
    engine = Engine(machines, simulated, scheduler, switch_cost=rules.switch_cost, changes=changes)
    return list(engine.run(past.ends).fates)
