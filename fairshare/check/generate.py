"""Generates random economies (test cases) of several kinds. Each kind is made to test certain promises.

An economy depends only on the seed and its number, so that a failure can be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from fairshare.check.economy import Account, Economy, Job
from fairshare.model import NOWHERE, Settings

X = TypeVar("X")

ODD = ((1, 3), (1, 5), (1, 6), (1, 7))
USUAL = (
    (1, 1),
    (1, 1),
    (1, 2),
    (1, 4),
    (1, 8),
    (2, 1),
    (3, 1),
    (2, 2),
    (2, 8),
    (4, 4),
    (8, 8),
    (5, 1),
    (3, 2),
)
TICKETS = (1.0, 1.0, 2.0, 3.5, 4.0, 8.0, 100.0)


class Maker:
    """A random generator for the parts of one economy, seeded by the economy's seed and number."""

    def __init__(self, seed: int, number: int) -> None:
        self.chance = np.random.default_rng([seed, number])

    def one(self, of: tuple[X, ...]) -> X:
        return of[int(self.chance.integers(len(of)))]

    def number(self, low: int, high: int) -> int:
        """Returns a random integer from `low` to `high`, both included."""
        return int(self.chance.integers(low, high + 1))

    def often(self, part: float) -> bool:
        return bool(self.chance.random() < part)

    def nodes(self, generations: int, most: int = 4) -> tuple[tuple[int, int], ...]:
        found = []
        for k in range(generations):
            gpus = self.one((2, 3, 4, 8, 8, 8, 16))
            found += [(k, gpus)] * self.number(1, most)
        return tuple(found)

    def tree(
        self, leaves: int, levels: int, tickets: tuple[float, ...] = TICKETS
    ) -> tuple[list[Account], list[int]]:
        """Returns a random ticket tree of `levels` levels: the accounts, parents first, and the indices of the leaf
        accounts.

        `leaves`: the number of leaf accounts. `tickets`: possible numbers of tickets, of which one is drawn for each
        account.
        """
        accounts: list[Account] = []
        above = [NOWHERE]
        for level in range(levels):
            last = level == levels - 1
            count = leaves if last else max(2, min(leaves, 2 * len(above)))
            # Every inner account has at least one child.
            parents = [above[i % len(above)] for i in range(count)]
            begin = len(accounts)
            accounts += [Account(self.one(tickets), parent) for parent in sorted(parents)]
            above = list(range(begin, len(accounts)))
        return accounts, above

    def shape(
        self, economy: Economy, shapes: tuple[tuple[int, int], ...], accepts: tuple[int, ...] | None
    ) -> Job:
        """Returns a job whose number of workers and GPUs per worker are a random pair from `shapes`.

        Pairs are drawn until the job fits into the economy's nodes, at most eight times. If no drawn pair fits, returns
        a job of one GPU. `accepts`: the generations that the job accepts, None for all.
        """
        for _ in range(8):
            workers, gpus = self.one(shapes)
            job = Job(0, workers, gpus, accepts)
            if replace(economy, jobs=(job,)).able.any():
                return job
        return Job(0, 1, 1, accepts)

    def accepts(self, generations: int, part: float) -> tuple[int, ...] | None:
        """Chooses at random which generations a new job accepts, and returns them, or None if the job accepts all.

        `generations`: the number of generations. `part`: the probability that the job accepts only a random subset of
        them.
        """
        if not self.often(part):
            return None
        some = [k for k in range(generations) if self.often(0.5)]
        return tuple(some) if some else (self.number(0, generations - 1),)

    def rates(self, generations: int, spread: float) -> dict[int, float]:
        gain = float(self.chance.uniform(0.0, 1.0)) + spread * float(self.chance.normal())
        return {k: round(float(2.0 ** (gain * k)), 3) for k in range(generations)}


def mixed(make: Maker) -> Economy:
    """Returns an economy that mixes many features: gangs, limits, several generations, priorities, deep account trees,
    and jobs that arrive and leave."""
    generations = make.number(1, 4)
    leaves, levels = make.number(2, 6), make.number(1, 3)
    accounts, below = make.tree(leaves, levels)
    limits, comes, ranks, restricted = (make.often(part) for part in (0.35, 0.4, 0.4, 0.5))
    if limits:
        for t in range(len(accounts)):
            if make.often(0.3):
                accounts[t] = replace(accounts[t], cap_total=float(make.number(1, 12)))
            elif make.often(0.2):
                accounts[t] = replace(
                    accounts[t], cap={make.number(0, generations - 1): float(make.number(0, 8))}
                )
    empty = Economy(make.nodes(generations), tuple(Account() for _ in range(1)), (), rounds=40)
    shapes = USUAL + (ODD if make.often(0.5) else ())
    jobs = []
    for t in below:
        for _ in range(make.number(1, 6)):
            job = make.shape(empty, shapes, make.accepts(generations, 0.6 if restricted else 0.0))
            first = make.number(0, 20) if comes and make.often(0.5) else 0
            last = first + make.number(2, 30) if comes and make.often(0.5) else None
            priority = make.number(0, 2) if ranks else 0
            jobs.append(replace(job, account=t, comes=first, goes=last, priority=priority))
    jobs.sort(key=lambda job: job.comes)  # so that an account's own order is by age
    for t in below:
        if make.often(0.2):
            accounts[t] = replace(accounts[t], evenly=True)
    return replace(empty, accounts=tuple(accounts), jobs=tuple(jobs), settings=_settings(make))


def services(make: Maker) -> Economy:
    """Returns a mixed economy in which some jobs are services or sessions, which have the highest priority."""
    given = mixed(make)
    jobs = tuple(replace(job, keeps=True, priority=10) if make.often(0.3) else job for job in given.jobs)
    return replace(given, jobs=jobs)


def _settings(make: Maker, hold: tuple[float, ...] = (0.0, 0.0, 0.0, 120.0)) -> Settings:
    return Settings(
        ordering="lottery" if make.often(0.25) else "stride",
        trading=False,
        min_hold=make.one(hold),
        switch_cost=make.one((0.0, 2.0)),
    )


def fits(make: Maker) -> Economy:
    """Returns an economy in which all jobs fit into the cluster together.

    This holds by construction: gangs are placed on nodes one by one until a chosen fraction of the GPUs is used.
    """
    generations = make.number(1, 3)
    accounts, below = make.tree(make.number(1, 5), make.number(1, 3))
    empty = Economy(make.nodes(generations), (Account(),), (), rounds=12)
    free = [gpus for _, gpus in empty.nodes]
    target = empty.capacity.sum() * make.one((0.5, 0.7, 0.8, 0.9, 1.0))
    jobs: list[Job] = []
    for _ in range(200):
        used = sum(job.size for job in jobs)
        job = make.shape(empty, USUAL + ODD, make.accepts(generations, 0.3))
        if used + job.size > target:
            continue
        for k in [k for k in range(generations) if replace(empty, jobs=(job,)).able[0, k]]:
            on = [n for n, (at, _) in enumerate(empty.nodes) if at == k for _ in range(free[n] // job.gpus)]
            if len(on) >= job.workers:
                for n in on[: job.workers]:
                    free[n] -= job.gpus
                jobs.append(replace(job, account=make.one(tuple(below)), comes=make.one((0, 0, 0, 3))))
                break
    jobs.sort(key=lambda job: job.comes)
    return replace(
        empty, accounts=tuple(accounts), jobs=tuple(jobs), settings=_settings(make, (0.0, 0.0, 120.0))
    )


def saturated(make: Maker) -> Economy:
    """Returns an economy in which the jobs of each single user need at least as many GPUs as the cluster has.

    All jobs accept all generations. The jobs of some users arrive late or leave early.
    """
    generations = make.number(1, 3)
    nodes = tuple((k, make.one((4, 8, 8))) for k in range(generations) for _ in range(make.number(1, 3)))
    accounts, below = make.tree(make.number(2, 6), make.number(1, 3), (1.0, 2.0, 4.0, 8.0))
    empty = Economy(nodes, (Account(),), (), rounds=120)
    total = int(empty.capacity.sum())
    jobs: list[Job] = []
    crowd = make.one((1, 1, 1, 10))  # factor for the number of jobs of one user
    for i, t in enumerate(below):
        shapes = tuple(make.one(USUAL + ODD) for _ in range(2))
        first = make.number(10, 60) if make.often(0.2) else 0
        last = first + make.number(20, 60) if make.often(0.2) else None
        wanted = total * (crowd if i == 0 and total <= 16 else 1)
        while wanted > 0:
            job = replace(make.shape(empty, shapes, None), account=t, comes=first, goes=last)
            jobs.append(job)
            wanted -= job.size
    jobs.sort(key=lambda job: job.comes)
    return replace(
        empty,
        accounts=tuple(accounts),
        jobs=tuple(jobs),
        settings=replace(_settings(make, (0.0,)), ordering="stride"),
    )


def speeds(make: Maker) -> Economy:
    """Returns an economy whose jobs are faster on some generations than on others, and whose accounts do not trade."""
    generations = make.number(2, 4)
    nodes = tuple((k, make.one((4, 8))) for k in range(generations) for _ in range(make.number(1, 2)))
    accounts, below = make.tree(make.number(2, 5), 1)
    empty = Economy(nodes, (Account(),), (), rounds=100)
    jobs = []
    for t in below:
        for _ in range(make.number(1, 10)):
            job = make.shape(empty, ((1, 1), (1, 1), (1, 2), (1, 4)), make.accepts(generations, 0.3))
            jobs.append(replace(job, account=t, rate=make.rates(generations, 0.6)))
    settings = replace(_settings(make, (0.0,)), ordering="stride")
    return replace(empty, accounts=tuple(accounts), jobs=tuple(jobs), settings=settings)


def holds(make: Maker) -> Economy:
    """Returns an economy that tests the minimum hold, the time for which a gang keeps GPUs that it got.

    One user has gangs nearly as large as the cluster. The other users have many small jobs.
    """
    nodes = ((0, 8),) * make.number(2, 8)
    gpus = 8 * len(nodes)
    accounts = [Account(make.one((1.0, 1.0, 2.0, 3.5))) for _ in range(make.number(2, 8))]
    jobs = [Job(0, make.number(max(2, len(nodes) - 2), len(nodes)), 8)] * make.number(1, 2)
    for t in range(1, len(accounts)):
        size = make.one((1, 1, 2, 4))
        jobs += [Job(t, 1, size)] * (gpus // size)
    settings = Settings(trading=False, min_hold=make.one((60.0, 120.0, 300.0)))
    return Economy(nodes, tuple(accounts), tuple(jobs), settings, rounds=150)


def packing(make: Maker) -> Economy:
    """Returns an economy whose gangs fill nodes of 8 GPUs only in the right combinations, such as 3 and 5 GPUs.

    There are enough gangs of each size to fill all nodes.
    """
    nodes = ((0, 8),) * make.number(1, 6)
    pairs = ((3, 5), (6, 2), (7, 1), (5, 3), (4, 4), (3, 5))
    accounts = [Account(make.one((1.0, 2.0))) for _ in range(make.number(1, 4))]
    jobs: list[Job] = []
    for t in range(len(accounts)):
        few = make.one(pairs)
        own = [Job(t, 1, size) for _ in range(2 * len(nodes)) for size in few]
        make.chance.shuffle(own)
        jobs += own
    return Economy(nodes, tuple(accounts), tuple(jobs), Settings(trading=False), rounds=60)


def trades(make: Maker) -> Economy:
    """Returns an economy of teams that trade. Jobs have different speeds, and together want more GPUs than exist."""
    generations, teams = make.number(2, 3), make.number(2, 5)
    spread = make.one((0.1, 0.3, 0.6))
    nodes = tuple((k, make.one((2, 4, 8))) for k in range(generations))
    total = sum(gpus for _, gpus in nodes)
    jobs = []
    for t in range(teams):
        gain = float(make.chance.uniform(0.2, 1.5))
        for _ in range(total):
            own = gain + spread * float(make.chance.normal())
            jobs.append(Job(t, rate={k: round(float(2.0 ** (own * k)), 3) for k in range(generations)}))
    accounts = [Account(trades=True) for _ in range(teams)]
    return Economy(nodes, tuple(accounts), tuple(jobs), Settings(trading=True), rounds=100)


def lotteries(make: Maker) -> Economy:
    """Returns an economy with a single GPU that is assigned by lottery."""
    accounts, below = make.tree(make.number(2, 6), make.number(1, 3), (1.0, 2.0, 3.5, 4.0))
    jobs = tuple(Job(t) for t in below for _ in range(make.number(1, 3)))
    return Economy(((0, 1),), tuple(accounts), jobs, Settings(ordering="lottery", trading=False), rounds=4)


FLAVOURS = (mixed, fits, mixed, saturated, speeds, services, holds, packing, trades, lotteries)


def random_economy(seed: int, number: int) -> Economy:
    """Returns economy `number` of the random sequence with this seed. The kinds of economies take turns."""
    return FLAVOURS[number % len(FLAVOURS)](Maker(seed, number))
