"""Trades of GPU time between teams across generations, after which every job's owner makes more progress.

Gandiva_fair (EuroSys '20), automatic trading: who gains least by a fast generation sells time on it to who gains
most, for more time on a slow one. The paper has one speed-up for each user, the mean over its jobs, and so sells
what is worth more to the jobs that would lose it. Here each job has its own, and the jobs at the margin trade: of
the seller the job on the fast generation that gains least by it, of the buyer the job on the slow one that would
gain most. All trades of two generations are made at once: offers to sell, cheapest first, meet offers to buy,
dearest first. Then every account plays its own order through with what it would have, and the trades by which one
would make less progress are cut, until nobody would.

The paper's price is the second-highest speed-up; with two teams that is the seller's own, so that the whole gain is
the buyer's. The price "between" is a little above the seller's own: whoever pays with scarce slow GPUs gets the more
of the fast ones the lower the price, so this makes the gain of all together large, and none of the two sides trades
for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from fairshare.model import Bools, Floats, Ints, Settings, Snapshot, Trade
from fairshare.policies.gandiva_fair.borders import Borders, Divided, Part, ration
from fairshare.policies.gandiva_fair.evidence import backed, evidence_of
from fairshare.policies.gandiva_fair.margins import LEAST_GPUS, Between, Margin, Queue, Rows, ratios
from fairshare.policies.gandiva_fair.typical import with_typical
from fairshare.trade_limits import TradeLimits, parties_of
from fairshare.tree import Tree

ROUNDING = 1e-9
# By how much at least a price differs from the speed-ups of both sides.
PRICED = 1e-7
# Ratio of speed-ups below which nothing is traded, whatever the settings say.
LEAST_GAIN = 1.01
# Buyers whose ratios differ by less than NEAR share what is cheap, each buying in so many slices, and all pairs of
# generations are gone through so often, in markets of so many parties: in larger ones each is too small a part of the
# whole for that to be worth its time.
NEAR, SLICES, PASSES, HALVINGS, SMALL_MARKET = 1.5, 8, 3, 3, 64
MOST_PAIRS = 12  # that are gone through again


def trade(
    snapshot: Snapshot, tree: Tree, able: Bools, shares: Divided, limits: TradeLimits
) -> tuple[Floats, tuple[Trade, ...]]:
    """(T, K) GPUs that accounts have after trades, and the trades between parties.

    `able` (J, K) marks where jobs that share may run; what is noted in `limits` goes down. Users of one party
    exchange as parties do; the book has only what crosses their border. Only jobs of users who had
    one measured on both generations of a pair trade these, and claims of speed count as far as others back them.
    """
    accounts = snapshot.accounts
    rate = with_typical(snapshot.jobs.rate, able, snapshot.jobs.account, len(accounts.parent))
    jobs = replace(snapshot.jobs, rate=rate)
    _, member = parties_of(tree, accounts.trades)
    evidence = evidence_of(jobs.rate, member[jobs.account], jobs.model, snapshot.cluster.table)
    rows = Rows.of(jobs, able, member >= 0, accounts.evenly)
    trades = np.isfinite(backed(jobs.rate, evidence))[rows.job]
    book = _Book(snapshot, tree, shares, limits, rows, trades=trades)
    pairs = _pairs(rows)
    passes = PASSES if book.is_small and snapshot.settings.pricing == "between" else 1
    for _ in range(min(passes, max(MOST_PAIRS // max(len(pairs), 1), 1))):
        if not sum([book.open(pair) for pair in pairs]):
            break
    return book.share, book.trades()


def _pairs(rows: Rows) -> list[tuple[int, int]]:
    """Which generations are traded for which: of those in the order of speed the ones 1, 2, 4, ... apart.

    The slowest against the fastest first; others meet over those between them, as pairs would grow too many.
    """
    kinds = rows.rate.shape[1]
    known = np.maximum((rows.rate > 0).sum(axis=0), 1)
    by_speed = np.argsort(np.where(rows.rate > 0, rows.units[0], 0.0).sum(axis=0) / known, kind="stable")
    apart = {kinds - 1, *(2**i for i in range(kinds.bit_length()))}
    some = [pair for pair in combinations(range(kinds), 2) if pair[1] - pair[0] in apart]
    some.sort(key=lambda pair: (pair[0], -pair[1]))
    return [(int(by_speed[slow]), int(by_speed[fast])) for slow, fast in some]


@dataclass(frozen=True, slots=True)
class _Side:
    """The sellers or the buyers of a pair of generations, O offers: those of one party at one ratio are one."""

    ratio: Floats  # (O,)
    party: Ints  # (O,)
    gpus: Floats  # (O,) of the fast generation
    leaf: Ints  # (M,) accounts with jobs in offers
    offer: Ints  # (M,)
    part: Floats  # (M,) of its offer

    @classmethod
    def of(cls, margin: Margin, party: Ints, sign: int) -> _Side:
        """`party` (L,) of accounts; the lowest ratios first where `sign` is 1, the highest where it is -1."""
        ratio = np.round(margin.ratio, 9)
        by = np.lexsort((margin.leaf, party[margin.leaf], sign * ratio))
        ratio, leaf, gpus = ratio[by], margin.leaf[by], margin.gpus[by]
        new = np.ones(len(by), dtype=bool)
        new[1:] = (ratio[1:] != ratio[:-1]) | (party[leaf[1:]] != party[leaf[:-1]])
        first, offer = np.flatnonzero(new), np.cumsum(new) - 1
        total = np.bincount(offer, gpus, len(first)).astype(np.float64)
        return cls(ratio[first], party[leaf[first]], total, leaf, offer, gpus / total[offer])

    def parts(self, offer: Ints) -> Part:
        """The accounts (indices among L) in trades with these offers (D,)."""
        first = np.searchsorted(self.offer, np.arange(len(self.ratio) + 1))
        count = np.diff(first)[offer]
        trade = np.repeat(np.arange(len(offer)), count)
        at = np.arange(len(trade)) - np.repeat(np.cumsum(count) - count, count) + first[offer][trade]
        return Part(trade, self.leaf[at], self.part[at])


@dataclass(frozen=True, slots=True)
class _Deals:
    """D trades of one pair of generations, in the order in which limits count them."""

    seller: Ints  # (D,) offers
    buyer: Ints  # (D,)
    gpus: Floats  # (D,) of the fast generation
    price: Floats  # (D,) GPUs of the slow one for each of them
    sides: tuple[Part, Part]  # accounts (among L) of sellers and buyers

    def changes(self, gpus: Floats, leaves: int) -> tuple[Floats, Floats]:
        """(L,) GPUs of the slow and of the fast generation that accounts get by `gpus` (D,) of the trades."""
        slow, fast = np.zeros(leaves), np.zeros(leaves)
        for side, sign in zip(self.sides, (1.0, -1.0), strict=True):
            amount = sign * side.part * gpus[side.trade]
            slow += np.bincount(side.account, amount * self.price[side.trade], leaves)
            fast -= np.bincount(side.account, amount, leaves)
        return slow, fast


class _Book:
    """Makes trades; `share` (T, K) is what accounts have by then."""

    def __init__(
        self,
        snapshot: Snapshot,
        tree: Tree,
        shares: Divided,
        limits: TradeLimits,
        rows: Rows,
        *,
        trades: Bools,
    ) -> None:
        """Only the jobs in `rows` trade, where `trades` (R, K) says so, in the names of their parties."""
        parties, member = parties_of(tree, snapshot.accounts.trades)
        self.share = shares.share.copy()
        self._settings: Settings = snapshot.settings
        self._worth = max(self._settings.least_gain, LEAST_GAIN)
        self._tree, self._rows, self._trades, self._party = tree, rows, trades, parties[member[rows.account]]
        self.is_small = len(np.unique(self._party)) <= SMALL_MARKET
        self._borders = Borders(snapshot.accounts, tree, shares.entitled, limits)
        runs, use = rows.run(self.share[rows.account], np.arange(len(rows.account)))
        self._use: Floats = np.zeros(rows.able.shape)
        self._use[runs] = use
        self._progress = rows.progress(runs, use)
        # Rows of seller, buyer, slow and fast generation, GPUs of the fast one, of the slow one, both speed-ups.
        self._done: list[Floats] = []

    def trades(self) -> tuple[Trade, ...]:
        """What crossed the borders of parties: one line for each two of them and each two generations."""
        done = np.concatenate([np.empty((0, 8)), *self._done])
        if not len(done):
            return ()
        who, line = np.unique(done[:, :4].astype(np.int64), axis=0, return_inverse=True)
        gpus, paid, low, high = (
            np.bincount(line.ravel(), done[:, 4] * of, len(who))
            for of in (1.0, done[:, 5], done[:, 6], done[:, 7])
        )
        columns = gpus, paid, paid / gpus, low / gpus, high / gpus
        return tuple(
            Trade(*sides, *amounts)
            for sides, amounts in zip(who.tolist(), np.stack(columns, axis=1).tolist(), strict=True)
        )

    def open(self, pair: tuple[int, int]) -> bool:
        """Makes all trades of one pair of generations; whether there were any."""
        rows, ratio = self._rows, ratios(self._rows, *pair)
        if np.nansum(np.log(ratio) * rows.gpus) < 0:  # name the generations as most jobs find them
            pair, ratio = (pair[1], pair[0]), 1 / ratio
        deals = self._borders.deal(pair)[rows.account][rows.leaf]
        ratio[~(deals & self._trades[:, pair].all(axis=1))] = np.nan
        between = Between(rows, self._use, ratio, pair)
        sellers = _Side.of(between.sold(), self._party, 1)
        buyers = _Side.of(between.bought(), self._party, -1)
        if not len(sellers.ratio) or not len(buyers.ratio):
            return False
        met = self._meet(sellers, buyers, between)
        if not len(met.gpus):
            return False
        gpus = self._allowed(met, sellers, buyers, between, pair)
        gpus = self._settle(met, gpus, pair)
        if not gpus.any():
            return False
        self._note(met, gpus, sellers, buyers, pair)
        return True

    def _meet(self, sellers: _Side, buyers: _Side, between: Between) -> _Deals:
        """Offers to sell, cheapest first, with offers to buy, dearest first, where it is worth it.

        Much alike buyers take turns: each buys in slices, of which later ones rank as if their ratio were lower.
        """
        by_second = self._settings.pricing == "second_price"
        asks = sellers.ratio * (1 + PRICED if by_second else math.sqrt(self._worth))
        paid = _seconds(sellers, buyers) if by_second else np.full(len(buyers.ratio), asks[0])
        wants = _affordable(buyers, between.slow, np.maximum(paid, asks[0]))
        slices = SLICES if self.is_small else 1
        rank = NEAR ** -((np.arange(slices) + 0.5) / slices)
        offer = np.repeat(np.arange(len(wants)), slices)
        by = np.argsort(-(buyers.ratio[:, None] * rank).ravel(), kind="stable")
        seller, slice_, gpus = _overlaps(sellers.gpus, wants[offer[by]] / slices)
        buyer = offer[by][slice_]
        low, high = sellers.ratio[seller], buyers.ratio[buyer]
        price = asks[seller]
        if by_second:
            price = np.clip(paid[buyer], price, high * (1 - PRICED))
        good = (high >= low * self._worth) & (gpus > LEAST_GPUS)
        seller, buyer, gpus, price = seller[good], buyer[good], gpus[good], price[good]
        return _Deals(seller, buyer, gpus, price, (sellers.parts(seller), buyers.parts(buyer)))

    def _allowed(
        self, deals: _Deals, sellers: _Side, buyers: _Side, between: Between, pair: tuple[int, int]
    ) -> Floats:
        """(D,) how much of the trades the accounts can pay and use, and their limits allow."""
        slow, fast = pair
        one, price = np.ones(len(deals.gpus)), deals.price
        selling, buying = deals.sides
        gpus = ration(deals.gpus, buying, price[buying.trade], between.slow)
        gpus = ration(gpus, selling, price[selling.trade] - 1, between.waiting)
        for side, other, give, take in (
            (selling, buyers.party[deals.buyer], (fast, one), (slow, price)),
            (buying, sellers.party[deals.seller], (slow, price), (fast, one)),
        ):
            gpus = self._borders.within(gpus, self._crossed(side, other), give, take, self.share)
        return gpus

    def _crossed(self, side: Part, other: Ints) -> Part:
        return self._borders.crossed(replace(side, account=self._rows.account[side.account]), other)

    def _settle(self, deals: _Deals, gpus: Floats, pair: tuple[int, int]) -> Floats:
        """(D,) does the trades, less those by which an account would make less progress, and returns them."""
        rows, leaves, cuts = self._rows, len(self._rows.account), 0
        held, progress = self.share[rows.account], self._progress.copy()
        asked = np.unique(np.concatenate([side.account for side in deals.sides]))
        while len(asked):
            gpus = np.where(gpus > LEAST_GPUS, gpus, 0.0)
            for k, by in zip(pair, deals.changes(gpus, leaves), strict=True):
                held[asked, k] = np.maximum(self.share[rows.account[asked], k] + by[asked], 0.0)
            runs, use = rows.run(held, asked)
            self._use[rows.of_leaves(asked)] = 0.0
            self._use[runs] = use
            progress[:, asked] = rows.progress(runs, use)[:, asked]
            loses: Bools = np.any(progress < self._progress * (1 - ROUNDING), axis=0)
            cut = np.zeros(len(gpus), dtype=bool)
            for side in deals.sides:
                cut[side.trade[loses[side.account]]] = True
            cut &= gpus > 0
            cuts += 1
            gpus[cut] *= 0.5 if cuts <= (HALVINGS if self.is_small else 1) else 0.0
            asked = np.unique(np.concatenate([side.account[cut[side.trade]] for side in deals.sides]))
        self._progress, self.share[rows.account] = progress, held
        for level in self._tree.levels[:0:-1]:
            self.share[np.unique(self._tree.parent[level])] = 0.0
            np.add.at(self.share, self._tree.parent[level], self.share[level])
        return gpus

    def _note(
        self, deals: _Deals, gpus: Floats, sellers: _Side, buyers: _Side, pair: tuple[int, int]
    ) -> None:
        slow, fast = pair
        selling, buying = deals.sides
        parties = sellers.party[deals.seller], buyers.party[deals.buyer]
        self._borders.note(gpus, self._crossed(selling, parties[1]), fast, np.ones(len(gpus)))
        self._borders.note(gpus, self._crossed(buying, parties[0]), slow, deals.price)
        crosses = (parties[0] != parties[1]) & (gpus > 0)
        same = np.ones(len(gpus))
        speed_ups = sellers.ratio[deals.seller], buyers.ratio[deals.buyer]
        line = *parties, slow * same, fast * same, gpus, deals.price, *speed_ups
        self._done.append(np.stack(line, axis=1)[crosses])


def _affordable(buyers: _Side, has: Floats, price: Floats) -> Floats:
    """(O,) GPUs that offers would buy at a price (O,) from what each account has (L,), dearest first."""
    by = np.argsort(buyers.leaf, kind="stable")
    leaf, offer = buyers.leaf[by], buyers.offer[by]
    cost = buyers.gpus[offer] * buyers.part[by] * price[offer]
    pays = Queue.one_by_one(leaf).fill(cost, has)
    return np.bincount(offer, pays / price[offer], len(buyers.ratio)).astype(np.float64)


def _overlaps(first: Floats, second: Floats) -> tuple[Ints, Ints, Floats]:
    """Where intervals of two kinds, laid end to end, overlap: which of each kind, and by how much."""
    ends = np.cumsum(first), np.cumsum(second)
    stops = np.union1d(*ends)
    stops = stops[stops <= min(ends[0][-1], ends[1][-1])]
    starts = np.append(0.0, stops[:-1])[: len(stops)]
    at = [np.searchsorted(end, starts, side="right") for end in ends]
    return at[0], at[1], stops - starts


def _seconds(sellers: _Side, buyers: _Side) -> Floats:
    """(O,) of each offer to buy, the highest ratio below it of another party; 0 where there is none."""
    ratio, party = np.append(buyers.ratio, sellers.ratio), np.append(buyers.party, sellers.party)
    by = np.argsort(-ratio, kind="stable")
    found, second = np.zeros(len(ratio)), 0.0
    for at in range(len(by) - 2, -1, -1):
        if party[by[at + 1]] != party[by[at]]:
            second = float(ratio[by[at + 1]])
        found[by[at]] = second
    return found[: len(buyers.ratio)]
