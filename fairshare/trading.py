"""Trades of GPU time between teams across generations, each strictly better off by its own speeds.

Gandiva_fair (EuroSys '20), automatic trading: the team with the lowest speed-up from a slow to a
fast generation sells time on the fast one to the team with the highest, for more time on the slow
one. The paper's price is the second-highest speed-up; with two teams that is the seller's own, so
that the whole gain is the buyer's. The price "between" lets both gain: the second-highest where it
is a third party's and lies strictly between, else the geometric mean of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from fairshare.demand import EPSILON, room
from fairshare.entitlement import Filling
from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs, Settings, Trade
from fairshare.speed import speed_ups
from fairshare.tree import Tree

# Less than this part of a GPU is not worth a line in the trade book.
LEAST_GPUS = 1e-6


@dataclass(frozen=True, slots=True)
class Terms:
    """What a pair of parties may trade at most, and how."""

    pricing: Literal["between", "second_price"]
    least_gain: float


def parties_of(tree: Tree, trades: Bools) -> tuple[Ints, Ints]:
    """The accounts that trade, and of each account (T,) which of them it belongs to (index or NOWHERE).

    Where an account and one above it are both marked, the lower one trades.
    """
    above = trades & (tree.sums(trades.astype(np.float64)) > 1)
    parties = np.flatnonzero(trades & ~above)
    member = np.full(len(tree.parent), NOWHERE, dtype=np.int64)
    member[parties] = np.arange(len(parties))
    for level in tree.levels[1:]:
        inherits = level[member[level] == NOWHERE]
        member[inherits] = member[tree.parent[inherits]]
    return parties, member


def trade(filling: Filling, trades: Bools, jobs: Jobs, able: Bools, settings: Settings) -> tuple[Trade, ...]:
    """Trade what `filling` holds between teams, then divide each team's holdings anew among its users."""
    parties, member = parties_of(filling.tree, trades)
    party = member[jobs.account]
    terms = Terms(settings.pricing, settings.least_gain)
    done: list[Trade] = []
    for slow, fast in _pairs(able.shape[1]):
        speed_up = speed_ups(jobs, able, party, len(parties), slow, fast)
        known = np.isfinite(speed_up)
        if not known.any():
            continue
        if np.log(speed_up[known]).sum() < 0:  # name the generations as most teams find them
            done += _trade_pair(filling, parties[known], 1 / speed_up[known], fast, slow, terms)
        else:
            done += _trade_pair(filling, parties[known], speed_up[known], slow, fast, terms)
    for account in sorted({side for one in done for side in (one.seller, one.buyer)}):
        filling.replace(account, filling.held[account].copy())
    return tuple(done)


def _pairs(generations: int) -> list[tuple[int, int]]:
    """Slow ascending, within it fast descending, as in the paper."""
    return sorted(combinations(range(generations), 2), key=lambda pair: (pair[0], -pair[1]))


def _trade_pair(
    filling: Filling, parties: Ints, speed_up: Floats, slow: int, fast: int, terms: Terms
) -> list[Trade]:
    """All trades of one pair of generations; changes `filling.held` of the parties and those above."""
    ranked = np.argsort(speed_up, kind="stable")
    accounts, speeds = parties[ranked].tolist(), speed_up[ranked].tolist()
    sellers = list(range(len(accounts)))
    done: list[Trade] = []
    for buyer in range(len(accounts) - 1, 0, -1):
        for seller in [s for s in sellers if s < buyer]:
            if filling.held[accounts[buyer], slow] <= LEAST_GPUS:
                break
            low, high = speeds[seller], speeds[buyer]
            if high <= low or high / low < terms.least_gain:
                break
            price = _price(low, high, speeds[buyer - 1], buyer - 1 != seller, terms.pricing)
            amount = _exchange(filling, accounts[seller], accounts[buyer], slow, fast, price)
            if amount > 0:
                done.append(
                    Trade(
                        seller=accounts[seller],
                        buyer=accounts[buyer],
                        slow=slow,
                        fast=fast,
                        fast_gpus=amount,
                        slow_gpus=amount * price,
                        price=price,
                        seller_speedup=low,
                        buyer_speedup=high,
                    )
                )
        sellers = [s for s in sellers if filling.held[accounts[s], fast] > LEAST_GPUS]
    return done


def _price(low: float, high: float, second: float, is_third: bool, pricing: str) -> float:
    """GPUs of the slow generation for one of the fast, between a seller's `low` and a buyer's `high`."""
    if pricing == "second_price":
        return second
    return second if is_third and low < second < high else float(np.sqrt(low * high))


def _exchange(filling: Filling, seller: int, buyer: int, slow: int, fast: int, price: float) -> float:
    """Move as much as both have and can use; returns the GPUs of the fast generation, 0 for none."""
    held, rank, tree = filling.held, filling.rank, filling.tree
    amount = min(held[seller, fast], held[buyer, slow] / price)
    step = np.zeros(held.shape[1])  # what the seller gets for each GPU that it gives
    step[slow], step[fast] = price, -1.0
    sides = [(tree.path(seller), step), (tree.path(buyer), -step)]
    common = set(sides[0][0]) & set(sides[1][0])
    for path, change in sides:
        for account in path:
            # Accounts above both see no change; others must be able to use it, quotas included.
            if account not in common and amount > LEAST_GPUS:
                amount = min(amount, room(rank[account], held[account], change))
    if amount <= LEAST_GPUS:
        return 0.0
    for path, change in sides:
        for account in path:
            if account not in common:
                held[account] = np.where((after := held[account] + amount * change) > EPSILON, after, 0.0)
    return float(amount)
