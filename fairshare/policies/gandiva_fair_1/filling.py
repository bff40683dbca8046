"""Who uses what others leave of their entitlement.

What an account cannot use goes to its siblings first, and only what the siblings cannot use goes up:
weighted max-min fairness, level by level, from the root.
"""

from __future__ import annotations

import numpy as np

from fairshare.demand import EPSILON, take
from fairshare.entitlement import split
from fairshare.model import Accounts, Floats, Ints
from fairshare.policies.gandiva_fair_1.exchange import fit_in
from fairshare.tree import Tree


class Filling:
    """Pours GPUs down the tree; `held` (T, K) is what each account can use and gets."""

    def __init__(self, tree: Tree, accounts: Accounts, rank: Floats, turn: Ints) -> None:
        """`rank` as from demand_rank, `turn` as from preferred_turns."""
        self.tree, self.tickets, self.rank, self.turn = tree, accounts.tickets, rank, turn
        self.held: Floats = np.zeros(turn.shape)
        # What such an account can use is for the accounts below it to find out, each for itself.
        self._passes_on = ~tree.is_leaf & np.isinf(accounts.cap).all(axis=1) & np.isinf(accounts.cap_total)
        self._single = 1 << np.arange(turn.shape[1])  # the sets of one generation

    def pour(self, siblings: Ints, amount: Floats) -> Floats:
        """Divide `amount` (K,) among siblings and all below them; returns what they could use.

        First each is offered its part by tickets, and keeps of it what it can use; what is left over
        is offered again to those that used up their last offer, until nobody can use more.
        """
        left = amount.copy()
        hungry = self.rank[siblings][:, self._single] > 0
        while True:
            offered = split(self.tickets[siblings][:, None] * hungry, left)
            if not np.any(offered > EPSILON):
                return amount - left
            taken = take(self.rank[siblings], self.held[siblings], offered, self.turn[siblings])
            taken = np.where(self._passes_on[siblings, None], offered, taken)
            self.held[siblings] += taken
            used = taken.copy()
            for i, account in enumerate(siblings.tolist()):
                if not self.tree.is_leaf[account] and taken[i].any():
                    used[i] = self.pour(self.tree.children[account], taken[i])
            self.held[siblings] -= taken - used
            left = np.maximum(left - used.sum(axis=0), 0.0)
            # Full is who took less than was offered, but not if that was for the sake of another
            # generation, of which it then gave something back.
            back = taken - used > EPSILON
            hungry &= ~back & ((taken >= offered - EPSILON) | back.any(axis=1, keepdims=True))

    def replace(self, account: int, amount: Floats) -> None:
        """Give `account` another amount (K,) that it can use, and divide all of it anew below."""
        self.held[account] = amount
        below = children = self.tree.children[account]
        while len(below):
            self.held[below] = 0.0
            below = np.concatenate([self.tree.children[child] for child in below.tolist()])
        if not len(children):
            return
        left = amount - self.pour(children, amount)
        if np.any(left > EPSILON):
            before = self.held[children]
            self.held[children] = fit_in(self.rank[children], before, left)
            for child in children[np.any(self.held[children] != before, axis=1)].tolist():
                self.replace(child, self.held[child].copy())


def water_fill(tree: Tree, accounts: Accounts, rank: Floats, turn: Ints, capacity: Floats) -> Filling:
    """Divide `capacity` (K,) by tickets among all that can use it."""
    filling = Filling(tree, accounts, rank, turn)
    filling.pour(tree.roots, capacity)
    return filling
