"""Trades GPU time between teams: fast GPUs for a larger number of slow GPUs, so that both sides make more progress.

The policy calls `trade` after it has computed each account's share (`shares.py`), and before it picks gangs. Trades
change only the shares.

A job's *speed-up* is its speed on a fast generation divided by its speed on a slow one. The seller of fast GPUs has
jobs with a low speed-up, the buyer has jobs with a high speed-up. The *price* is the number of slow GPUs for one fast
GPU. Both sides gain if the price is between their speed-ups. Example: the speed-ups are 2 and 8, and the price is 4.
The seller gives 1 fast GPU, which is worth 2 slow GPUs to it, and gets 4 slow GPUs. The buyer gives 4 slow GPUs and
gets 1 fast GPU, which is worth 8 slow GPUs to it.

This is the automatic trading of Gandiva_fair (EuroSys '20). The paper uses one speed-up for each user, the mean over
the user's jobs. A single job can then lose by a trade, because its speed-up differs from the mean. Here each job has
its own speed-up.

Generations trade in pairs of a slow and a fast one. For each pair:

1. Jobs make offers to sell and offers to buy (`margins.py`). Each offer has a price limit. It is the job's speed-up, or
   a stricter limit where the account would otherwise lose.
2. The cheapest offers to sell are matched with the highest offers to buy (`trade_prices.py`).
3. The trades are reduced to what the limits of accounts allow (`borders.py`).
4. The jobs of each account are assigned to the GPUs that the account would have after the trades (`own_order.py`). The
   trades of an account that would make less progress are reduced or cancelled, until no account loses.

By default, the price is the geometric mean of the two price limits, so that both sides gain by the same ratio. The
paper's price, the second-highest speed-up, is an option. With two teams, this is the seller's own speed-up, so that
only the buyer gains.

Dimensions of arrays: T accounts, K generations, J jobs. R of the jobs take part in the market; they belong to L leaf
accounts. D is the number of trades that are made together.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, cycle, islice

import numpy as np

from fairshare.columns import across
from fairshare.model import Bools, Floats, Ints, Snapshot, Trade
from fairshare.policies.gandiva_fair.borders import Borders, Divided, Legs, ration
from fairshare.policies.gandiva_fair.evidence import bounded, evidence_of
from fairshare.policies.gandiva_fair.margins import Margins
from fairshare.policies.gandiva_fair.own_order import MOST_PAIRINGS, GenerationPairs, Rows
from fairshare.policies.gandiva_fair.trade_prices import Matches, Offers, grain_of, match_offers
from fairshare.policies.gandiva_fair.typical import with_typical
from fairshare.trading.limits import TradeLimits, parties_of
from fairshare.tree import Tree

ROUNDING = 1e-9
# Lowest ratio of speed-ups at which a trade is made, even if the settings allow a lower one.
LEAST_GAIN = 1.01


def trade(
    snapshot: Snapshot, tree: Tree, able: Bools, shares: Divided, limits: TradeLimits
) -> tuple[Floats, tuple[Trade, ...]]:
    """Makes all trades between accounts that are worthwhile.

    Returns a pair:
    - The GPUs of each generation that each account has after the trades, as an array (T, K).
    - The trades between parties. A *party* is an account that is set to trade, usually a team. The users below a party
      trade in its name. Trades between two users of the same party change the first element, but are not listed here.

    Parameters:
    - `able` (J, K): whether each job may run on each generation; False for preemptible jobs.
    - `shares`: the GPUs that accounts have before the trades.
    - `limits`: how many GPUs accounts may still trade away. The function reduces these numbers by the trades that it
      makes.

    A job trades only generations on which its speed is known: measured, or estimated from other jobs of the same
    account (`typical.py`). Programs report the speeds of their own jobs. A job trades with its reported speeds, as far
    as independent evidence confirms them (`evidence.py`).
    """
    accounts = snapshot.accounts
    rate = with_typical(snapshot.jobs.rate, able, snapshot.jobs.account, len(accounts.parent))
    jobs = replace(snapshot.jobs, rate=rate)
    parties, member = parties_of(tree, accounts.trades)
    evidence = evidence_of(jobs.rate, member[jobs.account], jobs.model, snapshot.cluster.table)
    rows = Rows.of(jobs, able, np.where(member >= 0, across(shares.share), 0.0), accounts.evenly)
    claims = bounded(jobs.rate, evidence)
    offered = rows if claims is jobs.rate else rows.with_rates(claims[rows.job])
    tradable = np.isfinite(claims[rows.job]) & limits.deals[rows.account][rows.leaf]
    market = _Market(
        snapshot,
        tree,
        shares,
        limits,
        rows,
        offered=offered,
        tradable=tradable,
        party=parties[member[rows.account]],
    )
    quiet = 0
    for pairs in islice(cycle(rows.pairings), MOST_PAIRINGS):
        quiet = 0 if market.trade_on(pairs) else quiet + 1
        if quiet == len(rows.pairings):
            break
    return market.share, market.made()


class _Market:
    """The market in which accounts trade. Its state is the GPUs of each account after the trades made so far, `share`
    (T, K)."""

    def __init__(
        self,
        snapshot: Snapshot,
        tree: Tree,
        shares: Divided,
        limits: TradeLimits,
        rows: Rows,
        *,
        offered: Rows,
        tradable: Bools,
        party: Ints,
    ) -> None:
        """Opens the market. No trades are made yet.

        - `shares`: the GPUs of accounts before all trades.
        - `rows`: the R jobs that take part, with their reported or estimated rates. The progress of accounts is
          computed with these rates.
        - `offered`: the same jobs, with the rates at which they make offers. These rates are limited to what
          independent evidence confirms (`evidence.py`).
        - `tradable` (R, K): whether each job may trade GPUs of each generation.
        - `party` (L,): the account in whose name each leaf account trades, usually its team.
        """
        self.share = shares.share.copy()
        self._settings, self._tree = snapshot.settings, tree
        self._rows, self._offered, self._tradable, self._party = rows, offered, tradable, party
        self._grain = grain_of(len(np.unique(party)))
        self._borders = Borders(snapshot.accounts, tree, shares.entitled, limits)
        self._use: Floats = np.zeros(rows.able.shape)
        self._progress = self._progress_with(self.share, np.arange(len(rows.account)))
        # Columns: seller, buyer, slow generation, fast generation, fast GPUs, slow GPUs for each fast GPU, and the
        # speed-ups of seller and buyer.
        self._made: list[Floats] = []

    def made(self) -> tuple[Trade, ...]:
        """Returns the trades made so far between different parties. A party is an account that is set to trade, usually
        a team.

        Trades with the same seller, buyer and pair of generations are added up to one trade.
        """
        done = np.concatenate([np.empty((0, 8)), *self._made])
        if not len(done):
            return ()
        accounts, kinds = self.share.shape
        shape = accounts, accounts, kinds, kinds
        who, line = np.unique(
            np.ravel_multi_index(tuple(done[:, :4].T.astype(np.int64)), shape), return_inverse=True
        )
        gpus, paid, low, high = (
            np.bincount(line, done[:, 4] * of) for of in (1.0, done[:, 5], done[:, 6], done[:, 7])
        )
        columns = *np.unravel_index(who, shape), gpus, paid, paid / gpus, low / gpus, high / gpus
        return tuple(map(Trade, *(column.tolist() for column in columns)))

    def trade_on(self, pairs: GenerationPairs) -> bool:
        """Makes all worthwhile trades on the given pairs of a slow and a fast generation. Returns whether any trade was
        made."""
        margins = Margins(self._offered, self._use, self._tradable, pairs)
        sellers = Offers.of(margins.sold(), self._party, sells=True)
        buyers = Offers.of(margins.bought(), self._party, sells=False)
        least = max(self._settings.least_gain, LEAST_GAIN)
        pricing, grain, held = self._settings.pricing, self._grain, across(self.share)
        matches = match_offers(
            sellers, buyers, margins.on_slow, pricing=pricing, least=least, grain=grain, held=held
        )
        legs, gpus = self._legs(margins, sellers, buyers, matches)
        crossed = self._borders.crossed(legs)
        gpus = self._make(legs, self._borders.within(gpus, crossed, self.share))
        if not gpus.any():
            return False
        self._borders.note(gpus, crossed)
        parties = sellers.party[matches.seller], buyers.party[matches.buyer]
        pair, speed_ups = (
            sellers.pair[matches.seller],
            (sellers.ratio[matches.seller], buyers.ratio[matches.buyer]),
        )
        line = *parties, pairs.slow[pair], pairs.fast[pair], gpus, matches.price, *speed_ups
        self._made.append(np.stack(line, axis=1)[(parties[0] != parties[1]) & (gpus > 0)])
        return True

    def _legs(
        self, margins: Margins, sellers: Offers, buyers: Offers, matches: Matches
    ) -> tuple[Legs, Floats]:
        """Splits D matches of sellers with buyers into legs, and limits the sizes of the trades.

        A *leg* says which GPUs one account gives and which it takes in one trade. Each trade has at least two legs: one
        of the seller and one of the buyer.

        Returns a pair: the legs, and the size of each trade in GPUs of the fast generation, as an array (D,). A trade
        is reduced for two reasons:
        - The buyer's jobs do not have enough GPUs of the slow generation to pay for it.
        - The seller gets more GPUs than it gives, and its waiting jobs cannot use all additional GPUs.
        """
        account, pair = self._rows.account, sellers.pair[matches.seller]
        slow, fast = margins.pairs.slow[pair], margins.pairs.fast[pair]
        sold, seller, part = sellers.parts(matches.seller)
        bought, buyer, of = buyers.parts(matches.buyer)
        gpus = ration(matches.gpus, bought, buyer, of * matches.price[bought], margins.on_slow)
        seller, buyer = seller % len(account), buyer % len(account)
        gpus = ration(gpus, sold, seller, part * (matches.price[sold] - 1), margins.waiting)
        parties = buyers.party[matches.buyer][sold], sellers.party[matches.seller][bought]
        sells = Legs(
            sold, account[seller], parties[0], fast[sold], part, slow[sold], part * matches.price[sold]
        )
        buys = Legs(
            bought, account[buyer], parties[1], slow[bought], of * matches.price[bought], fast[bought], of
        )
        return sells + buys, gpus

    def _make(self, legs: Legs, gpus: Floats) -> Floats:
        """Makes D trades, but reduces or cancels those by which an account would lose. Returns the final sizes, as an
        array (D,).

        An account loses if it would make less progress after the trades than before. The trades of accounts that lose
        are first halved. After that, the trades of accounts that still lose are cancelled, until no account loses.

        - `legs`: which GPUs each account gives and takes in each trade.
        - `gpus` (D,): the wanted sizes of the trades. Like the final sizes, they are in GPUs of the fast generation.
        """
        leaf, before, gpus = np.searchsorted(self._rows.account, legs.account), self._progress, gpus.copy()
        asked, share, self._progress = _distinct(leaf, before), self.share, before.copy()
        for cuts in count(1):
            gpus = self._grain.whole(gpus)
            share = np.maximum(self.share + legs.changes(gpus, *self.share.shape), 0.0)
            self._progress[:, asked] = self._progress_with(share, asked)
            loses = np.any(self._progress < before * (1 - ROUNDING), axis=0)
            cut = np.zeros(len(gpus), dtype=bool)
            cut[legs.trade[loses[leaf]]] = True
            cut &= gpus > 0
            if not cut.any():
                break
            gpus[cut] *= 0.5 if cuts == 1 else 0.0  # halves them first, as they may only be too large
            asked = _distinct(leaf[cut[legs.trade]], before)
        self.share = self._tree.sums(np.where(self._tree.is_leaf[:, None], share, 0.0))
        return gpus

    def _progress_with(self, share: Floats, leaves: Ints) -> Floats:
        """Returns the progress that M accounts would make with the GPUs in `share`, as an array (U, M).

        Progress is measured in U different units; see `Rows.of`. The function also sets `_use`, the GPUs that each job
        of these accounts would use.

        - `share` (T, K): the GPUs that each account would have.
        - `leaves` (M,): the M accounts, as indices among the L leaf accounts of the market.
        """
        rows = self._rows
        runs, use = rows.run(share[rows.account[leaves]], leaves)
        self._use[rows.of_leaves(leaves)] = 0.0
        self._use[runs] = use
        return rows.progress(runs, use)[:, leaves]


def _distinct(leaves: Ints, of: Floats) -> Ints:
    """Returns the distinct values of `leaves` (N,) in ascending order.

    `of` (…, L): an array with L accounts. Each value must be at least 0 and less than L.
    """
    found = np.zeros(of.shape[-1], dtype=bool)
    found[leaves] = True
    return np.flatnonzero(found)
