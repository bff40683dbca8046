"""Makes trades of GPU time between teams across generations, so that every account makes more progress.

In the automatic trading of Gandiva_fair (EuroSys '20), the user that gains least by a fast generation sells time on it.
The buyer is the user that gains most, and pays with more time on a slow generation. The paper has one speed-up for each
user, the mean over its jobs. A job that is sped up more than this mean can therefore lose by a trade. Here each job has
its own speed-up (`margins.py`). The seller's job that gains least by the fast generation gives its GPUs, and the
buyer's job that would gain most gets them.

All trades between two generations are made together (`trade_prices.py`). The cheapest offers to sell are matched with
the highest offers to buy, within limits (`borders.py`). Then each account's jobs are assigned again with the GPUs that
it would have (`own_order.py`). If an account would make less progress, its trades are reduced or cancelled until no
account loses.

The price is the geometric mean of the two sides' speed-ups, so that both sides gain by the same ratio. The paper's
price, the second-highest speed-up, is an option. With two teams this is the seller's own speed-up, so that only the
buyer gains.
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
    """Makes trades. Returns the GPUs that each account has afterwards, as an array (T, K), and the trades between
    parties.

    A party is an account that is set to trade; the users below it trade in its name. Users of one party also trade with
    each other, but these trades are not returned. A job trades a pair of generations only if its user has a job that
    was measured on both. Reported speeds count only as far as independent evidence confirms them.

    `able` (J, K): whether each job may run on each generation, False for preemptible jobs. `limits`: how many GPUs
    accounts may still trade away; the trades reduce these numbers.
    """
    accounts = snapshot.accounts
    rate = with_typical(snapshot.jobs.rate, able, snapshot.jobs.account, len(accounts.parent))
    jobs = replace(snapshot.jobs, rate=rate)
    parties, member = parties_of(tree, accounts.trades)
    evidence = evidence_of(jobs.rate, member[jobs.account], jobs.model, snapshot.cluster.table)
    rows = Rows.of(jobs, able, np.where(member >= 0, across(shares.share), 0.0), accounts.evenly)
    claims = bounded(jobs.rate, evidence)
    offered = rows if claims is jobs.rate else rows.with_rates(claims[rows.job])
    may = np.isfinite(claims[rows.job]) & limits.deals[rows.account][rows.leaf]
    market = _Market(
        snapshot, tree, shares, limits, rows, offered=offered, may=may, party=parties[member[rows.account]]
    )
    quiet = 0
    for pairs in islice(cycle(rows.pairings), MOST_PAIRINGS):
        quiet = 0 if market.open(pairs) else quiet + 1
        if quiet == len(rows.pairings):
            break
    return market.share, market.trades()


class _Market:
    """A market in which accounts trade. `share` (T, K) has the GPUs of each account after the trades made so far."""

    def __init__(
        self,
        snapshot: Snapshot,
        tree: Tree,
        shares: Divided,
        limits: TradeLimits,
        rows: Rows,
        *,
        offered: Rows,
        may: Bools,
        party: Ints,
    ) -> None:
        """Opens the market for the jobs in `rows`.

        - `offered`: the same jobs with the rates at which they trade. The progress of accounts is computed with the
          rates in `rows`.
        - `may` (R, K): whether each of the R jobs may trade each generation.
        - `party` (L,): the party in whose name each of the L leaf accounts trades. A party is an account that is set to
          trade.
        """
        self.share = shares.share.copy()
        self._settings, self._tree = snapshot.settings, tree
        self._rows, self._offered, self._may, self._party = rows, offered, may, party
        self._grain = grain_of(len(np.unique(party)))
        self._borders = Borders(snapshot.accounts, tree, shares.entitled, limits)
        self._use: Floats = np.zeros(rows.able.shape)
        self._progress = self._play(self.share, np.arange(len(rows.account)))
        # Columns: seller, buyer, slow generation, fast generation, fast GPUs, slow GPUs for each fast GPU, and the
        # speed-ups of seller and buyer.
        self._done: list[Floats] = []

    def trades(self) -> tuple[Trade, ...]:
        """Returns the trades between parties, added up: one trade for each seller, buyer and pair of generations."""
        done = np.concatenate([np.empty((0, 8)), *self._done])
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

    def open(self, pairs: GenerationPairs) -> bool:
        """Makes all trades on the given pairs of generations. Returns whether any trade was made."""
        margins = Margins(self._offered, self._use, self._may, pairs)
        sellers = Offers.of(margins.sold(), self._party, sells=True)
        buyers = Offers.of(margins.bought(), self._party, sells=False)
        least = max(self._settings.least_gain, LEAST_GAIN)
        pricing, grain, held = self._settings.pricing, self._grain, across(self.share)
        matches = match_offers(
            sellers, buyers, margins.on_slow, pricing=pricing, least=least, grain=grain, held=held
        )
        legs, gpus = self._legs(margins, sellers, buyers, matches)
        crossed = self._borders.crossed(legs)
        gpus = self._settle(legs, self._borders.within(gpus, crossed, self.share))
        if not gpus.any():
            return False
        self._borders.note(gpus, crossed)
        parties = sellers.party[matches.seller], buyers.party[matches.buyer]
        pair, speed_ups = (
            sellers.pair[matches.seller],
            (sellers.ratio[matches.seller], buyers.ratio[matches.buyer]),
        )
        line = *parties, pairs.slow[pair], pairs.fast[pair], gpus, matches.price, *speed_ups
        self._done.append(np.stack(line, axis=1)[(parties[0] != parties[1]) & (gpus > 0)])
        return True

    def _legs(
        self, margins: Margins, sellers: Offers, buyers: Offers, matches: Matches
    ) -> tuple[Legs, Floats]:
        """Returns a pair: the legs of D matched trades, and the sizes of these trades in fast GPUs, as an array (D,).

        A leg is what one account gives and takes in one trade. The sizes are reduced to what buyers can pay for and
        sellers can use.
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

    def _settle(self, legs: Legs, gpus: Floats) -> Floats:
        """Makes D trades and returns their final sizes in GPUs of the fast generation, as an array (D,).

        If an account would make less progress after the trades, all its trades are halved. If it would still make less
        progress, they are cancelled.

        `legs`: what each account gives and takes in each trade. `gpus` (D,): the sizes of the trades before they are
        reduced.
        """
        leaf, before, gpus = np.searchsorted(self._rows.account, legs.account), self._progress, gpus.copy()
        asked, share, self._progress = _marked(leaf, before), self.share, before.copy()
        for cuts in count(1):
            gpus = self._grain.whole(gpus)
            share = np.maximum(self.share + legs.changes(gpus, *self.share.shape), 0.0)
            self._progress[:, asked] = self._play(share, asked)
            loses = np.any(self._progress < before * (1 - ROUNDING), axis=0)
            cut = np.zeros(len(gpus), dtype=bool)
            cut[legs.trade[loses[leaf]]] = True
            cut &= gpus > 0
            if not cut.any():
                break
            gpus[cut] *= 0.5 if cuts == 1 else 0.0  # halves them first, as they may only be too large
            asked = _marked(leaf[cut[legs.trade]], before)
        self.share = self._tree.sums(np.where(self._tree.is_leaf[:, None], share, 0.0))
        return gpus

    def _play(self, share: Floats, leaves: Ints) -> Floats:
        """Returns the progress that accounts would make with the GPUs `share` (T, K), as an array (U, M).

        `leaves` (M,): the indices of these accounts among the leaf accounts. Progress is measured in each of U units,
        such as GPUs of a job's fastest generation; see `Rows.of`. The function also stores in `_use` the GPUs that each
        job of these accounts would use.
        """
        rows = self._rows
        runs, use = rows.run(share[rows.account[leaves]], leaves)
        self._use[rows.of_leaves(leaves)] = 0.0
        self._use[runs] = use
        return rows.progress(runs, use)[:, leaves]


def _marked(leaves: Ints, of: Floats) -> Ints:
    """Returns the distinct values of `leaves` (N,) in ascending order.

    The values are indices from 0 to L - 1, where L is the length of the last axis of `of` (…, L).
    """
    found = np.zeros(of.shape[-1], dtype=bool)
    found[leaves] = True
    return np.flatnonzero(found)
