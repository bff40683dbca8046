"""Version 2 of gandiva_fair behind the interface of policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fairshare.model import Bools, Decision, Floats, Ints, Snapshot, Trade
from fairshare.policies.base import Happened, Need, State, option
from fairshare.policies.gandiva_fair.balances import Balances, settle
from fairshare.policies.gandiva_fair.samples import swap_for_samples
from fairshare.policies.gandiva_fair.selection import Picks, select
from fairshare.policies.gandiva_fair.shares import Shares, share_out
from fairshare.policies.gandiva_fair.trades import trade
from fairshare.policies.unchanged import divides_alike
from fairshare.quotas import limits_of
from fairshare.reasons import may_run
from fairshare.trade_limits import TradeLimits
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Options:
    """How GPU time is shared."""

    draw: Literal["stride", "lottery"] = option(
        "stride", "Who goes next: in turns by tickets (stride), or by lot with tickets as chances (lottery)"
    )
    trading: bool = option(True, "Teams trade GPU time across generations where both gain by it")
    pricing: Literal["between", "second_price"] = option(
        "between", "Price of a trade: between the speed-ups of the two sides, or the second-highest buyer's"
    )
    least_gain: float = option(1.05, "Ratio of speed-ups below which nothing is traded", least=1.0)
    memory: float = option(3600.0, "Seconds of share up to which a debt is remembered", least=0.0)


class GandivaFair:
    """Tickets with a guarantee, gang-aware turns over all generations, trades of the jobs at the margin."""

    name: ClassVar[str] = "gandiva_fair"
    version: ClassVar[int] = 2
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RATES, Need.OWN_ORDER, Need.RECLAIM})
    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self._options = options
        self._divided: tuple[Snapshot, _Divided] | None = None  # the last one, and what it is of

    @property
    def options(self) -> Options:
        return self._options

    def start(self, view: Snapshot) -> State:
        """`guaranteed` and `total` (T,), `owed` (T, K): GPU-seconds, see `Balances`; what was owed is guaranteed."""
        tree = Tree.of(view.accounts.parent)
        owed = np.where(tree.is_leaf[:, None], view.accounts.owed, 0.0)
        total = tree.sums(owed).sum(axis=1)
        return {"guaranteed": np.maximum(total, 0.0), "total": total, "owed": owed}

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        tree, jobs = Tree.of(view.accounts.parent), view.jobs
        corrected = np.where(tree.is_leaf[:, None], happened.corrected, 0.0)
        found = settle(
            Balances(
                np.maximum(state["guaranteed"], 0.0),
                state["total"] + tree.sums(corrected).sum(axis=1),
                state["owed"] + corrected,
            ),
            Shares(happened.share, happened.guaranteed, happened.share),
            tree,
            happened.received,
            happened.seconds,
            replace(view.settings, memory=self._options.memory),
            happened.active,
            _largest(tree, jobs.account, (jobs.workers * jobs.gpus).astype(np.float64)),
        )
        return {"guaranteed": found.guaranteed, "total": found.total, "owed": found.owed}

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        seen = self._seen(view, state["owed"])
        if self._divided is None or not divides_alike(seen, self._divided[0]):
            self._divided = seen, _divide(seen)
        known = self._divided[1]
        balances = Balances(state["guaranteed"], state["total"], state["owed"])
        limits = limits_of(seen.accounts, known.tree, known.shares.entitled, seen.settings)
        picks = select(seen, known.tree, known.able, known.reason, known.shares, balances, limits, random)
        return _plan(known, swap_for_samples(seen, known.tree, known.able, picks))

    def shares(self, view: Snapshot) -> tuple[Floats, Floats]:
        seen = self._seen(view, view.accounts.owed)
        tree = Tree.of(seen.accounts.parent)
        able, _ = may_run(seen, tree)
        found = share_out(seen, tree, seen.jobs.sharing(able))
        return found.entitled, found.share

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        chosen: Mapping[str, object] = asdict(self._options)
        return replace(
            view,
            accounts=replace(view.accounts, owed=owed),
            settings=replace(view.settings, **chosen),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class _Divided:
    """What of a plan depends neither on what accounts are owed nor on where gangs run."""

    tree: Tree
    able: Bools  # (J, K) where each job may run now
    reason: Ints  # (J,) why nowhere, if so
    shares: Shares
    trades: tuple[Trade, ...]


def _divide(view: Snapshot) -> _Divided:
    tree = Tree.of(view.accounts.parent)
    able, reason = may_run(view, tree)
    sharing = view.jobs.sharing(able)
    shares = share_out(view, tree, sharing)
    trades: tuple[Trade, ...] = ()
    if view.settings.trading and sharing.any():
        share, trades = trade(view, tree, sharing, shares, TradeLimits.of(view.accounts, shares.entitled))
        shares = replace(shares, share=share)
    return _Divided(tree, able, reason, shares, trades)


def _plan(known: _Divided, picks: Picks) -> Decision:
    run = np.flatnonzero(picks.generation >= 0)
    places = [picks.nodes[job] for job in run.tolist()]
    return Decision(
        run=run,
        generation=picks.generation[run],
        place_start=np.cumsum([0, *map(len, places)], dtype=np.int64),
        place_node=np.concatenate([np.empty(0, dtype=np.int64), *places]),
        reason=picks.reason,
        entitled=known.shares.entitled,
        share=known.shares.share,
        trades=known.trades,
        only_idle=picks.only_idle,
        guaranteed=known.shares.guaranteed,
    )


def _largest(tree: Tree, account: Ints, size: Floats) -> Floats:
    """(T,) GPUs of the largest gang below each account."""
    found = np.zeros(len(tree.parent))
    np.maximum.at(found, account, size)
    for level in tree.levels[:0:-1]:
        np.maximum.at(found, tree.parent[level], found[level])
    return found
