"""Builds small clusters for the tests of fairshare from short descriptions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from fairshare.driver import Situation
from fairshare.model import NOWHERE, Accounts, Cluster, Decision, Ints, Jobs, Settings, Snapshot
from fairshare.policies import policy_of

INF = float("inf")


@dataclass
class Account:
    tickets: float = 1.0
    parent: int = NOWHERE
    trades: bool = False
    cap: dict[int, float] = field(default_factory=dict)
    cap_total: float = INF


@dataclass
class Job:
    account: int
    workers: int = 1
    gpus: int = 1
    accepts: tuple[int, ...] | None = None  # None: any
    rate: dict[int, float] = field(default_factory=dict)
    priority: int = 0
    on: tuple[int, ...] = ()  # nodes of the workers if the job runs
    was_on: tuple[int, ...] = ()  # nodes of the workers where the job ran last
    resident: float = 1e6
    blocked: int = 0
    preemptible: bool = False
    most: int = 0  # workers; 0: the gang is not elastic, else `workers` is the least


def snapshot(
    nodes: list[tuple[int, int]],
    accounts: list[Account],
    jobs: list[Job],
    *,
    away: tuple[int, ...] = (),
    owed: dict[tuple[int, int], float] | None = None,
    **settings: object,
) -> Snapshot:
    """Returns a snapshot of a cluster.

    - `nodes`: a pair (generation, GPUs) for each node.
    - `away`: the indices of nodes that are drained or down.
    - `owed`: the GPU-seconds that an account is owed on a generation, by (account, generation).
    - `settings`: fields of Settings.
    """
    kinds = max((k for k, _ in nodes), default=-1) + 1
    installed = np.array([gpus for _, gpus in nodes], dtype=np.int64)
    capacity = installed.copy()
    capacity[list(away)] = 0
    generation = np.array([k for k, _ in nodes], dtype=np.int64)
    caps = np.full((len(accounts), kinds), INF)
    balance = np.zeros((len(accounts), kinds))
    for t, account in enumerate(accounts):
        for k, limit in account.cap.items():
            caps[t, k] = limit
    for (t, k), amount in (owed or {}).items():
        balance[t, k] = amount
    accepts = np.zeros((len(jobs), kinds), dtype=bool)
    rate = np.full((len(jobs), kinds), np.nan)
    for j, job in enumerate(jobs):
        accepts[j, list(range(kinds) if job.accepts is None else job.accepts)] = True
        for k, value in job.rate.items():
            rate[j, k] = value
    places = [job.on or job.was_on for job in jobs]
    is_elastic = any(job.most for job in jobs)
    return Snapshot(
        cluster=Cluster(tuple(f"G{k}" for k in range(kinds)), generation, capacity, installed),
        accounts=Accounts(
            parent=np.array([account.parent for account in accounts], dtype=np.int64),
            tickets=np.array([account.tickets for account in accounts], dtype=np.float64),
            trades=np.array([account.trades for account in accounts], dtype=bool),
            owed=balance,
            cap=caps,
            cap_total=np.array([account.cap_total for account in accounts], dtype=np.float64),
        ),
        jobs=Jobs(
            account=np.array([job.account for job in jobs], dtype=np.int64),
            workers=np.array([len(job.on) or job.workers for job in jobs], dtype=np.int64),
            gpus=np.array([job.gpus for job in jobs], dtype=np.int64),
            accepts=accepts,
            rate=rate,
            priority=np.array([job.priority for job in jobs], dtype=np.int64),
            running_on=np.array(
                [generation[job.on[0]] if job.on else NOWHERE for job in jobs], dtype=np.int64
            ),
            resident=np.array([job.resident for job in jobs], dtype=np.float64),
            blocked=np.array([job.blocked for job in jobs], dtype=np.int64),
            place_start=np.cumsum([0, *map(len, places)], dtype=np.int64),
            place_node=np.array([node for place in places for node in place], dtype=np.int64),
            preemptible=np.array([job.preemptible for job in jobs])
            if any(j.preemptible for j in jobs)
            else None,
            least=_ints([job.workers for job in jobs]) if is_elastic else None,
            most=_ints([job.most or job.workers for job in jobs]) if is_elastic else None,
        ),
        settings=Settings(**settings),  # type: ignore[arg-type]
    )


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def situation(given: Snapshot) -> Situation:
    """Returns the situation before the first decision of the default policy on the snapshot `given`.

    The policy's options come from the settings in the snapshot, and its first state from what accounts are owed.
    """
    return Situation.first(policy_of(given.settings), given)


def decide(given: Snapshot, seed: int) -> Decision:
    return situation(given).decide(seed)


def with_closed(given: Snapshot, closed: set[int]) -> Snapshot:
    """Returns the snapshot with some nodes closed: running gangs stay on a closed node, and nothing new starts
    there."""
    jobs, nodes = given.jobs, len(given.cluster.capacity)
    holds = np.repeat(jobs.running_on != NOWHERE, np.diff(jobs.place_start))
    gpus = np.repeat(jobs.gpus, np.diff(jobs.place_start))
    held = np.zeros(nodes, dtype=np.int64)
    np.add.at(held, jobs.place_node[holds], gpus[holds])
    marked = np.isin(np.arange(nodes), list(closed))
    capacity = np.where(marked, held, given.cluster.capacity)
    return replace(given, cluster=replace(given.cluster, capacity=capacity, closed=marked))


def used_on_nodes(given: Snapshot, decision: Decision) -> Ints:
    used = np.zeros(len(given.cluster.capacity), dtype=np.int64)
    for p, job in enumerate(decision.run.tolist()):
        place = decision.place_node[decision.place_start[p] : decision.place_start[p + 1]]
        np.add.at(used, place, given.jobs.gpus[job])
    return used


def place_of(decision: Decision, job: int) -> list[int]:
    """Returns the node index of each worker of a job that the decision runs."""
    p = decision.run.tolist().index(job)
    return list(decision.place_node[decision.place_start[p] : decision.place_start[p + 1]].tolist())


@st.composite
def snapshots(draw: st.DrawFn, /, **settings: object) -> Snapshot:
    """Draws small clusters with several generations, a tree of accounts, limits, drained nodes, running gangs and
    debts."""
    kinds = draw(st.integers(1, 3))
    nodes = [
        (k, draw(st.sampled_from([2, 3, 4, 8]))) for k in range(kinds) for _ in range(draw(st.integers(1, 3)))
    ]
    away = tuple(n for n in range(len(nodes)) if draw(st.integers(0, 9)) == 0)
    teams = draw(st.integers(1, 3))
    limits = st.one_of(st.just(INF), st.integers(0, 8).map(float))
    tickets = st.sampled_from([1.0, 2.0, 3.5])
    accounts = [
        Account(
            draw(tickets), trades=True, cap={k: draw(limits) for k in range(kinds)}, cap_total=draw(limits)
        )
        for _ in range(teams)
    ]
    accounts += [
        Account(draw(tickets), parent=draw(st.integers(0, teams - 1)), cap_total=draw(limits))
        for _ in range(draw(st.integers(teams, 5)))
    ]
    free = [0 if n in away else gpus for n, (_, gpus) in enumerate(nodes)]
    jobs = [
        _job(draw, nodes, free, accounts=(teams, len(accounts)), kinds=kinds)
        for _ in range(draw(st.integers(0, 12)))
    ]
    owed = {
        (t, k): float(draw(st.integers(-20, 20))) * 30
        for t in range(teams, len(accounts))
        for k in range(kinds)
        if draw(st.booleans())
    }
    chosen: dict[str, object] = {
        "ordering": draw(st.sampled_from(["stride", "lottery"])),
        "min_hold": draw(st.sampled_from([0.0, 120.0])),
        "switch_cost": draw(st.sampled_from([0.0, 5.0])),
        "may_preempt": draw(st.booleans()),
    }
    return snapshot(nodes, accounts, jobs, away=away, owed=owed, **(chosen | settings))


def _job(
    draw: st.DrawFn, nodes: list[tuple[int, int]], free: list[int], *, accounts: tuple[int, int], kinds: int
) -> Job:
    job = Job(
        account=draw(st.integers(accounts[0], accounts[1] - 1)),
        workers=draw(st.sampled_from([1, 1, 2, 3])),
        gpus=draw(st.sampled_from([1, 1, 2, 4])),
        accepts=tuple(sorted(draw(st.sets(st.integers(0, kinds - 1), min_size=1)))),
        priority=draw(st.sampled_from([0, 0, 1])),
        blocked=draw(st.sampled_from([0, 0, 0, 0, 11])),
        preemptible=draw(st.sampled_from([False, False, False, True])),
    )
    job.rate = {
        k: draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for k in job.accepts or () if draw(st.booleans())
    }
    generation = draw(st.sampled_from(job.accepts or (0,)))
    place: list[int] = []
    for _ in range(job.workers if draw(st.booleans()) else 0):
        room = [n for n, (k, _) in enumerate(nodes) if k == generation and free[n] >= job.gpus]
        if not room:
            break
        place.append(draw(st.sampled_from(room)))
        free[place[-1]] -= job.gpus
    if len(place) == job.workers:
        job.on, job.resident = tuple(place), draw(st.sampled_from([30.0, 600.0]))
    else:
        for node in place:
            free[node] += job.gpus
    return job
