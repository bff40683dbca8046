"""Tests that a pool of GPUs is divided completely, and that accounts' total GPUs per ticket are max-min fair.

Linear programs compute the expected totals. A class contains jobs of one account with the same generations and speeds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from fairshare.model import Floats, Ints
from fairshare.policies.gandiva_fair.families import Families
from fairshare.policies.gandiva_fair.flow import Flow
from fairshare.policies.gandiva_fair.gates import Gates
from fairshare.policies.gandiva_fair.network import Groups, Network


class Economy:
    """A random test case: one pool of GPUs of K generations, accounts with classes of jobs, and the limits of both.
    `kept` (classes, K) is the guaranteed GPUs of each class."""

    def __init__(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.generations = int(chance.integers(1, 5))
        self.pool = chance.integers(1, 9, self.generations).astype(float)
        accounts = int(chance.integers(1, 6))
        self.tickets = chance.choice([1.0, 2.0, 3.5], accounts)
        self.account: Ints = np.sort(np.concatenate([np.arange(accounts), chance.integers(0, accounts, 4)]))
        count = len(self.account)
        self.able = chance.random((count, self.generations)) < 0.5
        self.able[np.arange(count), chance.integers(0, self.generations, count)] = True
        self.step = np.where(self.able, chance.choice([0, 0, -5, -20], self.able.shape), 1).astype(np.int16)
        self.gpus = chance.integers(1, 12, count).astype(float)
        self.most = np.where(chance.random(accounts) < 0.8, np.inf, chance.integers(1, 6, accounts))
        shape = accounts, self.generations
        self.each = np.where(chance.random(shape) < 0.7, np.inf, chance.integers(0, 5, shape))
        shape = count, self.generations
        self.kinds = np.where(chance.random(shape) < 0.8, np.inf, chance.integers(1, 5, shape))
        self.kept = self._some_kept(chance)

    def _some_kept(self, chance: np.random.Generator) -> Floats:
        """Returns random guaranteed GPUs of each class, as an array (classes, K).

        They exceed neither the GPUs of the pool nor the limits of accounts and classes.
        """
        kept = chance.random(self.able.shape) * self.able
        kept *= np.minimum(1.0, self.gpus / kept.sum(axis=1))[:, None]
        kept *= min(1.0, float((self.pool / np.maximum(kept.sum(axis=0), 1e-9)).min()))
        totals = np.bincount(self.account, kept.sum(axis=1), len(self.tickets))
        kept *= np.minimum(1.0, self.most / np.maximum(totals, 1e-9))[self.account][:, None]
        kept = np.minimum(kept, self.kinds)
        each = np.zeros(self.each.shape)
        np.add.at(each, self.account, kept)
        kept *= np.minimum(1.0, self.each / np.maximum(each, 1e-9))[self.account]
        return kept * chance.choice([0.0, 0.5, 0.9])

    def divided(self) -> tuple[Flow, Ints]:
        flow, account = self.rows()
        nobody = np.zeros_like(account)
        accounts = Groups.of(account, np.minimum(self.most, np.bincount(account, flow.gpus)))
        gates = Gates.of(flow, nobody, self.pool[None], [(account, self.each), (flow.kind, self.kinds)])
        leaves = self.leaves(flow, account)
        start = flow.held.copy()
        Network(flow, gates, [leaves, accounts]).fill()
        members = Groups.of(nobody, np.full(1, np.inf))
        families = Families(flow, gates, [leaves], accounts, members)
        families.divide(self.tickets, np.bincount(account, start.sum(axis=0)), start)
        return flow, account

    def leaves(self, flow: Flow, account: Ints) -> Groups:
        leaves = Groups.of(account, np.full(len(self.tickets), np.inf))
        return replace(leaves, least=leaves.sums(flow.sure.sum(axis=0)))

    def rows(self) -> tuple[Flow, Ints]:
        """Returns the input of the tested division as rows, and the account of each row.

        Each class of jobs has several rows:
        - one for each generation on which GPUs are guaranteed to it;
        - one for the further GPUs that it could use.
        """
        row, k = np.nonzero(self.kept > 0)
        able = (self.able[row] & (self.step[row] >= self.step[row, k][:, None])).T
        at = np.arange(self.generations)[:, None] == k
        account = np.concatenate([self.account[row], self.account])
        order = np.lexsort((np.concatenate([row, np.arange(len(self.gpus))]), account))
        account = account[order]
        held = np.concatenate([at * self.kept[row].T, np.zeros(self.able.T.shape)], axis=1)[:, order]
        kinds = np.arange(len(self.gpus))
        flow = Flow(
            leaf=account,
            kind=np.concatenate([row, kinds])[order],
            gpus=np.concatenate([self.kept[row, k], self.gpus - self.kept.sum(axis=1)])[order],
            able=np.concatenate([able, self.able.T], axis=1)[:, order],
            step=np.concatenate([self.step[row], self.step])[order].T,
            held=held,
            base=np.zeros_like(held),
            is_kept=np.repeat([True, False], [len(row), len(self.gpus)])[order],
        )
        return flow, account

    def totals(self, flow: Flow, account: Ints) -> Floats:
        return np.bincount(account, flow.held.sum(axis=0), len(self.tickets))

    def constraints(self) -> tuple[list[Floats], list[float]]:
        """Returns the constraints of a linear program as (rows of coefficients, upper bound of each row).

        The variables are the GPUs of each class on each generation. One more variable is the GPUs per ticket, which the
        program maximises.
        """
        rows: list[Floats] = []
        bounds: list[float] = []

        def at_most(where: object, bound: float, sign: float = 1.0) -> None:
            row = np.zeros(self.able.shape)
            row[where] = sign
            rows.append(np.append(row.ravel(), 0.0))
            bounds.append(bound)

        for i, kept in enumerate(self.kept):
            at_most(i, self.gpus[i])
            for step in set(self.step[i, self.able[i]].tolist()):
                fast = self.able[i] & (self.step[i] >= step)
                at_most((i, fast), -kept[fast].sum(), -1.0)
        for k in range(self.generations):
            at_most((slice(None), k), self.pool[k])
        for a in np.flatnonzero(np.isfinite(self.most)).tolist():
            at_most(self.account == a, self.most[a])
        for a, k in np.argwhere(np.isfinite(self.each)).tolist():
            at_most((self.account == a, k), self.each[a, k])
        for c, k in np.argwhere(np.isfinite(self.kinds)).tolist():
            at_most((c, k), self.kinds[c, k])
        return rows, bounds

    def best_totals(self) -> Floats:
        """Returns each account's total number of GPUs, as an array with one entry for each account.

        A series of linear programs finds the totals that are max-min fair per ticket.
        """
        rows, bounds = self.constraints()
        generations, size, accounts = self.generations, self.able.size, len(self.tickets)
        member = self.account == np.arange(accounts)[:, None]
        kept = np.bincount(self.account, self.kept.sum(axis=1), accounts)
        box = [(0, None if may else 0) for may in self.able.ravel()] + [(None, None)]
        total = np.full(accounts, np.nan)

        def solve(level_of: set[int], objective: Floats) -> tuple[float, Floats]:
            more, limits = list(rows), list(bounds)
            for a in range(accounts):
                row = np.append(
                    np.repeat(-member[a][:, None].astype(float), generations, axis=1).ravel(), 0.0
                )
                floor = total[a] if np.isfinite(total[a]) else kept[a]
                more.append(row)
                limits.append(-floor + 1e-9)
                if a in level_of:
                    rising = row.copy()
                    rising[-1] = self.tickets[a]
                    more.append(rising)
                    limits.append(0.0)
            found = linprog(objective, np.array(more), limits, bounds=box, method="highs")
            assert found.success, found.message
            return float(found.fun), found.x[:size].reshape(self.able.shape)

        up = np.append(np.zeros(size), -1.0)
        while np.isnan(total).any():
            open_ = {a for a in range(accounts) if np.isnan(total[a])}
            # An account whose guarantee is above the level does not hold the level down.
            below = set(open_)
            while True:
                level = -solve(below, up)[0]
                above = {a for a in below if kept[a] > level * self.tickets[a] + 1e-7}
                if not above:
                    break
                below -= above
                if not below:
                    break
            if not below:
                level = min(kept[a] / self.tickets[a] for a in open_)
                below = {a for a in open_ if kept[a] / self.tickets[a] <= level + 1e-9}
            stuck = []
            floors = total.copy()
            for a in below:
                total[:] = floors
                for other in below - {a}:
                    total[other] = max(kept[other], level * self.tickets[other]) - 1e-8
                own = np.append(
                    np.repeat(-member[a][:, None].astype(float), generations, axis=1).ravel(), 0.0
                )
                if -solve(set(), own)[0] <= max(kept[a], level * self.tickets[a]) + 1e-6:
                    stuck.append(a)
            total[:] = floors
            assert stuck
            for a in stuck:
                total[a] = max(kept[a], level * self.tickets[a])
        return total


@pytest.mark.parametrize("seed", range(60))
def test_totals_are_those_of_a_chain_of_linear_programs(seed: int) -> None:
    economy = Economy(seed)
    assert economy.totals(*economy.divided()) == pytest.approx(economy.best_totals(), abs=1e-5)


@pytest.mark.parametrize("generations", range(1, 5))
def test_several_pools_are_filled_as_much_as_each_alone(generations: int) -> None:
    economies = [economy for economy in map(Economy, range(160)) if economy.generations == generations]
    flow, pool, kinds, begin = economies[0].rows()[0].of(np.arange(0)), [], [], 0
    for number, economy in enumerate(economies):
        more, account = economy.rows()
        more.leaf, more.kind = account + begin, more.kind + sum(map(len, kinds))
        flow, begin = flow + more, begin + len(economy.tickets)
        pool += [number] * len(account)
        kinds.append(economy.kinds)
    most, each = (np.concatenate([getattr(one, name) for one in economies]) for name in ("most", "each"))
    inside = [(flow.leaf, each), (flow.kind, np.concatenate(kinds))]
    gpus = np.array([one.pool for one in economies])
    gates = Gates.of(flow, np.array(pool), gpus, inside)
    leaves = Groups.of(flow.leaf, most)
    Network(flow, gates, [replace(leaves, least=leaves.sums(flow.sure.sum(axis=0)))]).fill()
    alone = [economy.totals(*economy.divided()).sum() for economy in economies]
    assert np.bincount(pool, flow.held.sum(axis=0)) == pytest.approx(alone, abs=1e-5)
    held = np.zeros_like(gpus)
    np.add.at(held, pool, flow.held.T)
    assert (held <= gpus + 1e-6).all()
