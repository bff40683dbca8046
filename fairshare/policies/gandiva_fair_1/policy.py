"""Version 1 of gandiva_fair behind the interface of policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fairshare.model import Decision, Floats, Snapshot
from fairshare.policies.base import Happened, Need, State, option
from fairshare.policies.gandiva_fair_1.algorithm import Division, decide, divide, shares_of
from fairshare.policies.gandiva_fair_1.balance import settle
from fairshare.policies.unchanged import divides_alike
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Options:
    """How GPU time is shared."""

    draw: Literal["stride", "lottery"] = option(
        "stride", "Who goes next: in turns by tickets (stride), or by lot with tickets as chances (lottery)"
    )
    trading: bool = option(True, "Teams trade GPU time across generations where both gain by it")
    pricing: Literal["between", "second_price"] = option(
        "between", "Price of a trade: halfway between the speed-ups, or the second-highest buyer's"
    )
    least_gain: float = option(1.05, "Ratio of speed-ups below which nothing is traded", least=1.0)
    memory: float = option(3600.0, "Seconds of share up to which a debt is remembered", least=0.0)


class GandivaFair1:
    """Hierarchical tickets, gang-aware stride or lottery for each generation, trades at one speed-up a team."""

    name: ClassVar[str] = "gandiva_fair"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RATES})
    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self._options = options
        self._divided: tuple[Snapshot, Division] | None = None  # the last one, and what it is of

    @property
    def options(self) -> Options:
        return self._options

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
        if self._divided is None or not divides_alike(seen, self._divided[0]):
            self._divided = seen, divide(seen)
        # Its draws begin from the number that the generator was made of.
        seed = random.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        return decide(seen, int(seed), self._divided[1])

    def shares(self, view: Snapshot) -> tuple[Floats, Floats]:
        return shares_of(self._seen(view, view.accounts.owed))

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        chosen: Mapping[str, object] = asdict(self._options)
        return replace(
            view,
            accounts=replace(view.accounts, owed=owed),
            settings=replace(view.settings, **chosen),  # type: ignore[arg-type]
        )
