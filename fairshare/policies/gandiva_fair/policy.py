"""Contains the scheduling policy gandiva_fair, version 2, as the class that the scheduler calls in each round.

The class joins the steps of a decision. It divides the cluster among accounts (`shares.py`), trades GPU time between
them (`trades.py`), and picks gangs and nodes (`selection.py`). Between rounds, it updates the GPU time that accounts
are owed (`balances.py`).

Sizes of arrays: T accounts, K generations, J jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairshare.model import Bools, Decision, Floats, Ints, Snapshot, Trade
from fairshare.policies.base import Happened, Need, State
from fairshare.policies.gandiva_fair.affinity import affinities
from fairshare.policies.gandiva_fair.balances import Balances, settle
from fairshare.policies.gandiva_fair.samples import swap_for_samples
from fairshare.policies.gandiva_fair.selection import Picks, select
from fairshare.policies.gandiva_fair.shares import Shares, share_out
from fairshare.policies.gandiva_fair.trades import trade
from fairshare.policies.tickets import ByTickets
from fairshare.quotas import limits_of
from fairshare.rates import within_reason
from fairshare.reasons import may_run
from fairshare.trading.limits import TradeLimits
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class _Divided:
    """The first half of a decision: the division of the cluster among accounts, including trades, before gangs are
    picked.

    It depends neither on the GPU time that accounts are owed nor on the nodes where gangs run. The next round can
    therefore reuse it if nothing else has changed.
    """

    tree: Tree
    able: Bools  # (J, K) where each job may run now
    reason: Ints  # (J,) the Reason of jobs that may not run on any generation
    shares: Shares
    affinity: Floats  # (J, K) the result of `affinities`
    trades: tuple[Trade, ...]
    remark: str | None  # message for operators

    @property
    def share(self) -> Floats:
        """Returns each account's share after trades, in GPUs of each generation, as an array (T, K)."""
        return self.shares.share


class GandivaFair(ByTickets[_Divided]):
    """The default policy. It divides GPU time among accounts by tickets, and trades it between accounts across
    generations.

    Each account is guaranteed the GPUs of its entitlement that it can use. To decide which gangs run next, accounts
    take turns. There is one order of turns for all generations together.
    """

    name: ClassVar[str] = "gandiva_fair"
    version: ClassVar[int] = 2
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RATES, Need.OWN_ORDER, Need.RECLAIM})

    def start(self, view: Snapshot) -> State:
        """Returns the policy's state before its first round, from the GPU time that an earlier policy still owed
        accounts.

        The state has three arrays in GPU-seconds; see `Balances` for how they are used:
        - `owed` (T, K): what the earlier policy owed each leaf account, by generation. It is 0 for inner accounts.
        - `total` (T,): the sum of `owed` over generations. An inner account has the sum over all accounts below it.
        - `guaranteed` (T,): `total`, or 0 where `total` is negative.
        """
        tree = Tree.of(view.accounts.parent)
        owed = np.where(tree.is_leaf[:, None], view.accounts.owed, 0.0)
        total = tree.sums(owed).sum(axis=1)
        return {"guaranteed": np.maximum(total, 0.0), "total": total, "owed": owed}

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        tree, jobs = Tree.of(view.accounts.parent), view.jobs
        corrected = np.where(tree.is_leaf[:, None], happened.corrected, 0.0)
        back = tree.sums(corrected).sum(axis=1)
        total = state["total"] + back
        # When accounts get back time that was charged in excess, it counts as guaranteed only up to what they are owed
        # in total.
        saved = np.minimum(state["guaranteed"] + back, np.maximum(state["guaranteed"], total))
        found = settle(
            Balances(np.maximum(saved, 0.0), total, state["owed"] + corrected),
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
        known = self._division(seen)
        balances = Balances(state["guaranteed"], state["total"], state["owed"])
        limits = limits_of(seen.accounts, known.tree, known.shares.entitled, seen.settings)
        picks = select(
            seen, known.tree, known.able, known.reason, known.shares, known.affinity, balances, limits, random
        )
        return _plan(known, swap_for_samples(seen, known.tree, known.able, picks))

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        seen = super()._seen(view, owed)
        return replace(seen, jobs=replace(seen.jobs, rate=within_reason(seen.jobs.rate)))

    def _share_out(self, seen: Snapshot, tree: Tree, sharing: Bools) -> tuple[Shares, str | None]:
        """Divides the cluster among accounts by tickets, before trades. Subclasses can override this division.

        Returns the shares, and a message for operators or None. In this class, the message is always None.

        - `seen`: the policy's input.
        - `tree`: the account tree.
        - `sharing` (J, K): whether each job may run on each generation. It is False for preemptible jobs, which earn no
          share.
        """
        return share_out(seen, tree, sharing), None

    def _divide(self, seen: Snapshot) -> _Divided:
        tree = Tree.of(seen.accounts.parent)
        able, reason = may_run(seen, tree)
        sharing = seen.jobs.sharing(able)
        shares, remark = self._share_out(seen, tree, sharing)
        trades: tuple[Trade, ...] = ()
        if seen.settings.trading and sharing.any():
            share, trades = trade(seen, tree, sharing, shares, TradeLimits.of(seen.accounts, shares.entitled))
            shares = replace(shares, share=share)
        affinity = affinities(seen.jobs, sharing, shares.share, seen.accounts.evenly)
        return _Divided(tree, able, reason, _without_dust(shares), affinity, trades, remark)


def _without_dust(shares: Shares) -> Shares:
    """Returns the shares rounded to 9 decimals. Without this, rounding errors would appear as borrowed or lent GPUs."""
    return Shares(*(np.round(gpus, 9) for gpus in (shares.entitled, shares.guaranteed, shares.share)))


def _plan(known: _Divided, picks: Picks) -> Decision:
    run = np.flatnonzero(picks.generation >= 0)
    places = [picks.nodes[job] for job in run.tolist()]
    return Decision(
        run=run,
        generation=picks.generation[run],
        place_start=np.cumsum([0, *map(len, places)], dtype=np.int64),
        place_node=np.concatenate([np.empty(0, dtype=np.int64), *places]),
        reason=picks.reason,
        share=known.shares.share,
        trades=known.trades,
        preemptible=picks.preemptible,
        guaranteed=known.shares.guaranteed,
        remark=known.remark,
    )


def _largest(tree: Tree, account: Ints, size: Floats) -> Floats:
    """Returns the GPUs of each account's largest gang, as an array (T,). It is 0 for an account without gangs.

    The gangs of an account include those of all accounts below it.

    - `account` (J,): the leaf account of each gang.
    - `size` (J,): GPUs of each gang.
    """
    found = np.zeros(len(tree.parent))
    np.maximum.at(found, account, size)
    for level in tree.levels[:0:-1]:
        np.maximum.at(found, tree.parent[level], found[level])
    return found
