"""Version 1 of gandiva_fair behind the interface of policies."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fairshare.model import Decision, Snapshot
from fairshare.policies.base import Happened, Need, State
from fairshare.policies.gandiva_fair_1.algorithm import Division, decide, divide
from fairshare.policies.gandiva_fair_1.balance import settle
from fairshare.policies.tickets import ByTickets
from fairshare.tree import Tree


class GandivaFair1(ByTickets[Division]):
    """Hierarchical tickets, gang-aware stride or lottery for each generation, trades at one speed-up a team."""

    name: ClassVar[str] = "gandiva_fair"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RATES})

    def start(self, view: Snapshot) -> State:
        """`owed` (T, K): GPU-seconds that leaves are owed."""
        return {"owed": view.accounts.owed}

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        leaf = Tree.of(view.accounts.parent).is_leaf
        share = np.where(leaf[:, None], happened.share, 0.0)
        owed = settle(
            state["owed"] + happened.corrected,
            share,
            happened.received,
            happened.seconds,
            self._options.memory,
            happened.active & leaf,
        )
        return {"owed": owed}

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        seen = self._seen(view, state["owed"])
        # Its draws begin from the number that the generator was made of.
        seed = random.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        return decide(seen, int(seed), self._division(seen))

    def _divide(self, seen: Snapshot) -> Division:
        return divide(seen)
