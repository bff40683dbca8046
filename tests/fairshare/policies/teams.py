"""Builds teams that want to trade, and computes by linear programs the progress that they could make with their
GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from fairshare.model import Floats, Snapshot, Trade
from fairshare.policies.gandiva_fair.trades import trade
from fairshare.trading.limits import TradeLimits
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot

Order = Literal["in order", "evenly"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True)
class Held:
    """Accounts' entitlements and shares, as arrays (T, K) of GPUs, if all teams have enough jobs and only tickets
    count.

    Tests use it in place of the result of `share_out`.
    """

    entitled: Floats
    share: Floats


def teams(
    rates: list[Floats], capacity: tuple[int, ...], tickets: list[float] | None = None, **settings: Any
) -> Snapshot:
    """Returns a cluster with teams that trade and have one-GPU jobs.

    - `rates`: for each team, an array (jobs, K) of the jobs' speeds on each generation.
    - `capacity`: the number of GPUs of each generation, which has one node.
    - `tickets`: the tickets of each team. None: one ticket each.
    - `settings`: further arguments of `snapshot`.
    """
    accounts = [Account(weight, trades=True) for weight in tickets or [1.0] * len(rates)]
    jobs = [
        Job(t, rate={k: float(x) for k, x in enumerate(job)}) for t, some in enumerate(rates) for job in some
    ]
    return snapshot(list(enumerate(capacity)), accounts, jobs, **settings)


def by_tickets(given: Snapshot) -> Held:
    """Returns the entitlements, divided by tickets at each level of the tree.

    Assumes that every account has more jobs than its entitlement can run.
    """
    tree, accounts = Tree.of(given.accounts.parent), given.accounts
    capacity = np.bincount(given.cluster.node_generation, given.cluster.capacity).astype(float)
    share = np.zeros((len(accounts.parent), len(capacity)))
    share[tree.roots] = np.outer(accounts.tickets[tree.roots] / accounts.tickets[tree.roots].sum(), capacity)
    for parent, below in enumerate(tree.children):
        if len(below):
            share[below] = np.outer(accounts.tickets[below] / accounts.tickets[below].sum(), share[parent])
    return Held(share, share)


def traded(given: Snapshot) -> tuple[Floats, tuple[Trade, ...]]:
    held = by_tickets(given)
    limits = TradeLimits.of(given.accounts, held.entitled)
    return trade(given, Tree.of(given.accounts.parent), given.jobs.accepts, held, limits)


def own_progress(rates: list[Floats], held: Floats, order: Order) -> Floats:
    """Returns the most progress that each team can make with its GPUs in its own order of jobs, as an array (T,).

    - `rates`: for each team, an array (jobs, K) of the rates of one-GPU jobs.
    - `held` (T, K): the teams' GPUs.
    - `order`: "in order" if a job runs only as long as all jobs before it, "evenly" if all jobs run equally long.
    """
    found = []
    for own, gpus in zip(rates, held, strict=True):
        jobs, total = len(own), min(gpus.sum(), len(own))
        runs = (
            np.full(jobs, total / jobs) if order == "evenly" else np.clip(total - np.arange(jobs), 0.0, 1.0)
        )
        found.append(_most([own], gpus + 1e-9, runs, None, "in order")[0])
    return np.array(found)


def most_progress(rates: list[Floats], capacity: Floats, least: Floats, order: Order) -> Floats:
    """Returns each team's progress, as an array (T,), if the GPUs are divided so that the sum of all progress is
    largest.

    - `capacity`: the number of GPUs of each generation.
    - `least` (T,): the progress that each team must at least make.
    - `order`: "in order" if a job runs only as long as all jobs before it, "evenly" if all jobs of a team run equally
      long.
    """
    return _most(rates, capacity, np.ones(sum(map(len, rates))), least, order)


def _most(rates: list[Floats], capacity: Floats, runs: Floats, least: Floats | None, order: Order) -> Floats:
    every, team = np.concatenate(rates), np.repeat(np.arange(len(rates)), [len(some) for some in rates])
    jobs, generations = every.shape
    made = np.zeros((len(rates), jobs, generations))
    made[team, np.arange(jobs)] = every
    each = np.repeat(np.eye(jobs), generations, axis=1)
    rows = [each, np.tile(np.eye(generations), jobs)]
    bounds = [runs, capacity]
    if least is not None:
        follows = each[1:][team[1:] == team[:-1]] - each[:-1][team[1:] == team[:-1]]
        rows += [-made.reshape(len(rates), -1), follows] + [-follows] * (order == "evenly")
        bounds += [1e-9 - least] + [np.zeros(len(follows))] * (1 + (order == "evenly"))
    found = linprog(
        -made.sum(axis=0).ravel(), csr_array(np.concatenate(rows)), np.concatenate(bounds), method="highs"
    )
    assert found.status == 0, found.message
    progress: Floats = made.reshape(len(rates), -1) @ found.x
    return progress
