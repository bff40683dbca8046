"""Teams that want to trade, and what they could make of what they hold: by linear programs, not by a policy's way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from fairshare.model import Floats, Snapshot, Trade
from fairshare.policies.gandiva_fair.trades import trade
from fairshare.trade_limits import TradeLimits
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot


@dataclass(frozen=True)
class Held:
    """Stands for what share_out gives: all of them are saturated, so tickets say it all."""

    entitled: Floats
    share: Floats


def teams(
    rates: list[Floats], capacity: tuple[int, ...], tickets: list[float] | None = None, **settings: object
) -> Snapshot:
    """`rates` of each team are (jobs, K); each job has one GPU."""
    accounts = [Account(weight, trades=True) for weight in tickets or [1.0] * len(rates)]
    jobs = [
        Job(t, rate={k: float(x) for k, x in enumerate(job)}) for t, some in enumerate(rates) for job in some
    ]
    return snapshot(list(enumerate(capacity)), accounts, jobs, **settings)


def by_tickets(given: Snapshot) -> Held:
    """(T, K) what tickets earn, level by level, where everybody has more jobs than that."""
    tree, accounts = Tree.of(given.accounts.parent), given.accounts
    capacity = np.bincount(given.cluster.node_generation, given.cluster.capacity).astype(float)
    share = np.zeros((len(accounts.parent), len(capacity)))
    share[tree.roots] = np.outer(accounts.tickets[tree.roots] / accounts.tickets[tree.roots].sum(), capacity)
    for parent, below in enumerate(tree.children):
        if len(below):
            share[below] = np.outer(accounts.tickets[below] / accounts.tickets[below].sum(), share[parent])
    return Held(share, share)


def traded(given: Snapshot, *, in_order: bool = True) -> tuple[Floats, tuple[Trade, ...]]:
    held = by_tickets(given)
    limits = TradeLimits.of(given.accounts, held.entitled)
    return trade(given, Tree.of(given.accounts.parent), given.jobs.accepts, held, limits, in_order=in_order)


def best_use(rates: Floats, held: Floats, gpus: Floats | None = None) -> float:
    """The most progress that jobs with these rates (jobs, K) can make of `held` (K,), `gpus` (jobs,) at most each."""
    return best_total([rates], held, sizes=None if gpus is None else [gpus])


def best_total(
    rates: list[Floats], capacity: Floats, least: Floats | None = None, sizes: list[Floats] | None = None
) -> float:
    """The most progress of all teams together, each making at least `least` of the (T,)."""
    every, team = np.concatenate(rates), np.repeat(np.arange(len(rates)), [len(some) for some in rates])
    jobs, generations = every.shape
    cell, value = np.arange(jobs * generations), every.ravel()
    rows, columns, amounts = [cell // generations], [cell], [np.ones(len(cell))]
    rows.append(jobs + cell % generations), columns.append(cell), amounts.append(np.ones(len(cell)))
    bound = [np.ones(jobs) if sizes is None else np.concatenate(sizes), capacity]
    if least is not None:
        (
            rows.append(jobs + generations + team[cell // generations]),
            columns.append(cell),
            amounts.append(-value),
        )
        bound.append(-np.asarray(least) + 1e-9)
    where = np.concatenate(rows), np.concatenate(columns)
    found = linprog(
        -value, csr_array((np.concatenate(amounts), where)), np.concatenate(bound), method="highs"
    )
    assert found.status == 0, found.message
    return float(-found.fun)


def first_jobs(jobs: int, gpus: float) -> Floats:
    """(jobs,) what each of so many jobs of one GPU has of `gpus` when they run in order."""
    return np.clip(gpus - np.arange(jobs), 0.0, 1.0)
