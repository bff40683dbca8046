"""Makes trades of GPU time between teams across generations that let every account make more progress.

Gandiva_fair (EuroSys '20), automatic trading: the user that gains least by a fast generation sells time on it to the
user that gains most, for more time on a slow generation. The paper has one speed-up for each user, the mean over its
jobs, and so sells time that is worth more to the jobs that lose it. Here each job has its own speed-up, and the jobs
at the margin trade (`margins.py`): the seller's job on the fast generation that gains least by it, and the buyer's
job on the slow generation that would gain most. All trades of two generations are made at once (`trade_prices.py`):
offers to sell, cheapest first, meet offers to buy, dearest first, as far as limits allow (`borders.py`). Then every
account replays its own order with the GPUs that it would have (`own_order.py`), and trades by which an account would
make less progress are cut, until none would.

The price is the geometric mean of the two sides' speed-ups: each side gets what is worth more to it than what it
gives, by the same ratio. The paper's price, the second-highest speed-up, is an option; with two teams it is the
seller's own speed-up, and the buyer has the whole gain.
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
    """Returns the GPUs that accounts have after trades, as an array (T, K), and the trades between parties.

    `able` (J, K) marks where jobs in the sharing may run. The trades are subtracted from `limits`. Users of one
    party trade as parties do, but only trades across the party's border are returned. A job trades a pair of
    generations only if its user has a job measured on both, and reported speeds count only as far as others confirm
    them.
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
    """A market in which trades are made; `share` (T, K) is what accounts have after the trades so far."""

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
        """Takes the jobs in `rows`, which trade the generations marked in `may` (R, K) in the name of their account's
        `party` (L,).

        Jobs trade at the rates of `offered`; the progress of their accounts is computed with the jobs' own rates.
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
        """Returns the trades across the borders of parties: one trade for each two parties and two generations."""
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
        """Makes all trades on the given pairs of generations. Returns whether there were any."""
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
        """Returns the legs of the trades, and an array (D,) of the GPUs of each trade that accounts can pay for and
        use."""
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
        """Makes the trades and returns their GPUs, as an array (D,).

        Before that, cuts trades by which an account would make less progress.
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
        """Returns the progress of the accounts `leaves` (M,) in each unit, with the GPUs of `share` (T, K), as an array
        (U, M)."""
        rows = self._rows
        runs, use = rows.run(share[rows.account[leaves]], leaves)
        self._use[rows.of_leaves(leaves)] = 0.0
        self._use[runs] = use
        return rows.progress(runs, use)[:, leaves]


def _marked(leaves: Ints, of: Floats) -> Ints:
    """Returns the distinct accounts in `leaves` (N,) in ascending order, as an array (M,); `of` (…, L) only gives the
    number of accounts."""
    found = np.zeros(of.shape[-1], dtype=bool)
    found[leaves] = True
    return np.flatnonzero(found)
