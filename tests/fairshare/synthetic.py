"""Builds synthetic clusters under load, for benchmarks and tests. The same seed gives the same cluster."""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Cluster, Floats, Ints, Jobs, Settings, Snapshot
from fairshare.placement import fit

NODE_GPUS = 8
GENERATIONS = ("P100", "V100", "A100")
USERS_PER_TEAM = 4
TEAMS_PER_DEPARTMENT = 5
# Workers, GPUs of a worker, and the probability of the shape: 1, 2, 4, 8 and 16 GPUs.
SHAPES = ((1, 1, 0.50), (1, 2, 0.15), (1, 4, 0.12), (1, 8, 0.13), (4, 1, 0.05), (2, 8, 0.05))
Shapes = tuple[tuple[int, int, float], ...]


def synthetic_snapshot(
    gpus: int,
    jobs_per_gpu: float,
    tenants: int,
    seed: int,
    *,
    settings: Settings | None = None,
    generations: tuple[str, ...] = GENERATIONS,
    shapes: Shapes = SHAPES,
    levels: tuple[int, ...] | None = None,
) -> Snapshot:
    """Returns a cluster of about `gpus` GPUs with a long queue: `jobs_per_gpu` jobs for each GPU.

    Every tenth job is running, until the cluster is full. For half of the jobs, the speed is known on all generations
    that they may use.

    - `tenants`: the number of teams. Each team has USERS_PER_TEAM users, and each department has up to
      TEAMS_PER_DEPARTMENT teams. Jobs belong to users.
    - `shapes`: the shapes of gangs, as tuples (workers, GPUs per worker, probability).
    - `levels`: the shape of another tree of accounts, which replaces departments, teams and users. The tree has
      `levels[0]` roots, and `levels[d]` children below each account of depth d - 1. Jobs belong to its leaves, and
      `tenants` is ignored.
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    kinds = len(generations)
    nodes = max(gpus // NODE_GPUS, kinds)
    cluster = Cluster(
        generations=generations,
        node_generation=np.sort(np.arange(nodes) % kinds),
        capacity=np.full(nodes, NODE_GPUS, dtype=np.int64),
        installed=np.full(nodes, NODE_GPUS, dtype=np.int64),
    )
    accounts, leaves = (
        _accounts(tenants, kinds, chance) if levels is None else _regular(levels, kinds, chance)
    )
    jobs = _jobs(int(gpus * jobs_per_gpu), leaves, cluster, chance, shapes)
    return Snapshot(cluster, accounts, jobs, settings or Settings())


def _accounts(tenants: int, kinds: int, chance: np.random.Generator) -> tuple[Accounts, Ints]:
    departments = -(-tenants // TEAMS_PER_DEPARTMENT)
    team = departments + np.arange(tenants)
    user = departments + tenants + np.arange(tenants * USERS_PER_TEAM)
    parent = np.concatenate(
        [
            np.full(departments, NOWHERE),
            np.arange(tenants) // TEAMS_PER_DEPARTMENT,
            team[np.arange(len(user)) // USERS_PER_TEAM],
        ]
    )
    size = len(parent)
    owed = np.zeros((size, kinds))
    owed[user] = chance.normal(0.0, 600.0, (len(user), kinds))
    cap_total = np.full(size, np.inf)
    cap_total[team[:: TEAMS_PER_DEPARTMENT * 2]] = NODE_GPUS * 4
    accounts = Accounts(
        parent=parent.astype(np.int64),
        tickets=chance.integers(1, 5, size).astype(np.float64),
        trades=np.isin(np.arange(size), team),
        owed=owed,
        cap=np.full((size, kinds), np.inf),
        cap_total=cap_total,
    )
    return accounts, user


def _regular(levels: tuple[int, ...], kinds: int, chance: np.random.Generator) -> tuple[Accounts, Ints]:
    """Returns the accounts of a regular tree, and the indices of its leaves.

    The tree has `levels[0]` roots, and `levels[d]` children below each account of depth d - 1. The accounts directly
    above the leaves trade with each other. In a tree of one level, the leaves trade.
    """
    parents, above = [], np.array([NOWHERE])
    for below in levels:
        parents.append(np.repeat(above, below))
        begin = sum(map(len, parents)) - len(parents[-1])
        above = begin + np.arange(len(parents[-1]))
    parent = np.concatenate(parents).astype(np.int64)
    size = len(parent)
    party = np.unique(parent[above]) if len(levels) > 1 else above
    accounts = Accounts(
        parent=parent,
        tickets=chance.integers(1, 5, size).astype(np.float64),
        trades=np.isin(np.arange(size), party),
        owed=np.zeros((size, kinds)),
        cap=np.full((size, kinds), np.inf),
        cap_total=np.full(size, np.inf),
    )
    return accounts, above


def _jobs(count: int, leaves: Ints, cluster: Cluster, chance: np.random.Generator, shapes: Shapes) -> Jobs:
    kinds = len(cluster.generations)
    shape = chance.choice(len(shapes), count, p=[often for _, _, often in shapes])
    workers = np.array([one for one, _, _ in shapes], dtype=np.int64)[shape]
    gpus = np.array([one for _, one, _ in shapes], dtype=np.int64)[shape]
    accepts = chance.random((count, kinds)) < 0.7
    accepts[~accepts.any(axis=1)] = True
    account = chance.choice(leaves, count).astype(np.int64)
    running_on, place_start, place_node = _run_some(cluster, accepts, workers, gpus)
    return Jobs(
        account=account,
        workers=workers,
        gpus=gpus,
        accepts=accepts,
        rate=_rates(account, accepts, chance),
        priority=(chance.random(count) < 0.05).astype(np.int64),
        running_on=running_on,
        resident=np.where(running_on != NOWHERE, chance.uniform(60.0, 6000.0, count), 0.0),
        blocked=np.zeros(count, dtype=np.int64),
        place_start=place_start,
        place_node=place_node,
    )


def _rates(account: Ints, accepts: Bools, chance: np.random.Generator) -> Floats:
    """Returns the measured rate of each job on each generation; NaN if not measured.

    All jobs of an account gain from newer generations to a similar degree.
    """
    count = len(account)
    gain = chance.uniform(0.2, 1.5, int(account.max(initial=0)) + 1)[account][:, None]
    speed = 2.0 ** np.arange(accepts.shape[1])  # of a typical job, by generation
    rates = speed[None, :] ** gain * chance.lognormal(0.0, 0.1, accepts.shape)
    return np.where(accepts & (chance.random(count) < 0.5)[:, None], rates, np.nan)


def _run_some(cluster: Cluster, accepts: Bools, workers: Ints, gpus: Ints) -> tuple[Ints, Ints, Ints]:
    """Places every tenth job until the cluster is full. Returns three arrays (running_on, start, nodes).

    - `running_on`: each job's generation, or NOWHERE if the job waits.
    - `start`, `nodes`: the workers of job j are on the nodes `nodes[start[j]:start[j + 1]]`.
    """
    free = cluster.capacity.copy()
    running_on = np.full(len(workers), NOWHERE, dtype=np.int64)
    places: list[Ints] = [np.empty(0, dtype=np.int64) for _ in range(len(workers))]
    of_generation = [np.flatnonzero(cluster.node_generation == k) for k in range(accepts.shape[1])]
    for job in range(0, len(workers), 10):
        for k in np.flatnonzero(accepts[job]).tolist():
            spot = fit(free[of_generation[k]], int(workers[job]), int(gpus[job]))
            if spot is not None:
                places[job], running_on[job] = of_generation[k][spot], k
                np.subtract.at(free, places[job], gpus[job])
                break
        if not free.any():
            break
    start = np.cumsum([0, *map(len, places)], dtype=np.int64)
    return running_on, start, np.concatenate([np.empty(0, dtype=np.int64), *places])
