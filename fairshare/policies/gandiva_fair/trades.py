"""Trades of GPU time between teams across generations, after which every job's owner makes more progress.

Gandiva_fair (EuroSys '20), automatic trading: who gains least by a fast generation sells time on it to who gains
most, for more time on a slow one. The paper has one speed-up for each user, the mean over its jobs, and so sells
what is worth more to the jobs that would lose it. Here each job has its own, and the jobs at the margin trade: of
the seller the job on the fast generation that gains least by it, of the buyer the job on the slow one that would
gain most.

The paper's price is the second-highest speed-up; with two teams that is the seller's own, so that the whole gain is
the buyer's. The price "between" is a little above the seller's own, and no higher than the geometric mean of the
two: whoever pays with scarce slow GPUs gets the more of the fast ones the lower the price, so this makes the gain of
all together large, and none of the two sides trades for nothing.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints, Settings, Snapshot, Trade
from fairshare.policies.gandiva_fair.borders import Borders, Divided, Parts
from fairshare.policies.gandiva_fair.margins import LEAST_GPUS, Blocks, Rows, margins, ratios
from fairshare.trade_limits import TradeLimits, parties_of
from fairshare.tree import Tree

# The price "between" is at most so many times the seller's speed-up.
SELLERS_PART = 1.05
# Buyers whose ratios differ by less than this share what is cheap, in so many rounds, in markets of so many buyers:
# in larger ones each is too small a part of the whole for a round of all to be worth its time.
NEAR, ROUNDS, SMALL_MARKET = 1.5, 8, 64


def trade(
    snapshot: Snapshot,
    tree: Tree,
    able: Bools,
    shares: Divided,
    limits: TradeLimits,
    *,
    in_order: bool = True,
) -> tuple[Floats, tuple[Trade, ...]]:
    """(T, K) GPUs that accounts have after trades, and the trades between parties.

    `able` (J, K) marks where jobs that share may run; what is noted in `limits` goes down. Users of one party
    exchange as parties do; the book has only what crosses their border. Only jobs that were measured on both
    generations of a pair trade these.

    With `in_order` an account gains by the jobs that run in its own order. Else it gains by the best use that its
    jobs could make of its GPUs: more is traded, but the account gains only if those jobs run first.
    """
    _, member = parties_of(tree, snapshot.accounts.trades)
    book = _Book(snapshot, tree, shares, limits, Rows.of(snapshot.jobs, able, member >= 0, in_order=in_order))
    pairs = sorted(combinations(range(able.shape[1]), 2), key=lambda pair: (pair[0], -pair[1]))
    for pair in pairs if len(pairs) > 1 else ():
        book.match(pair)
    for pair in pairs:
        book.open(pair)
    return book.share, book.trades()


class _Side:
    """The sellers or the buyers of a pair of generations: blocks of one party with one ratio are one offer."""

    def __init__(self, blocks: Blocks, leaf: Ints, party: Ints) -> None:
        """`leaf` and `party` (B,) of the blocks."""
        new = np.append(True, (np.diff(blocks.ratio) != 0) | (np.diff(party) != 0))
        first = np.flatnonzero(new[: len(leaf)])
        self._row, self._leaf, self._gpus, self._first = blocks.row, leaf, blocks.gpus, first
        self._offer = np.cumsum(new[: len(leaf)]) - 1
        self._total = np.add.reduceat(blocks.gpus, first) if len(first) else np.empty(0)
        self.ratio: list[float] = blocks.ratio[first].tolist()
        self.party: list[int] = party[first].tolist()
        self.left: list[float] = self._total.tolist()
        self.gave, self.got = [0.0] * len(first), [0.0] * len(first)
        last = np.append(first[1:], len(leaf)) - 1
        alone = leaf[first] == leaf[last] if len(first) else np.empty(0, dtype=bool)
        self._alone: list[int] = np.where(alone, leaf[first], NOWHERE).tolist()

    def parts(self, offer: int) -> Parts:
        """The accounts with jobs of an offer, and the part that each has of it."""
        alone = self._alone[offer]
        if alone != NOWHERE:
            return ((alone, 1.0),)
        blocks = np.flatnonzero(self._offer == offer)
        leaf, which = np.unique(self._leaf[blocks], return_inverse=True)
        part = np.bincount(which, self._gpus[blocks]) / self._total[offer]
        return tuple(zip(leaf.tolist(), part.tolist(), strict=True))

    def offers(self, rows: int) -> Ints:
        """(R,) the offer of each job; NOWHERE for none."""
        found = np.full(rows, NOWHERE, dtype=np.int64)
        found[self._row] = self._offer
        return found

    def least(self, of: Floats) -> list[float]:
        """Of each offer the least of an amount (R,) of its jobs."""
        found: list[float] = np.minimum.reduceat(of[self._row], self._first).tolist()
        return found

    def changes(self, leaves: int) -> tuple[Floats, Floats]:
        """(L,) GPUs that each account gave, and those that it got."""
        part = self._gpus / self._total[self._offer]
        changes: Floats = np.zeros((2, leaves))
        for change, amount in zip(changes, (self.gave, self.got), strict=True):
            np.add.at(change, self._leaf, part * np.array(amount)[self._offer])
        return changes[0], changes[1]


class _Tails:
    """The running jobs of buyers, the last in their own order first: a buyer at a price above 1 gives up some."""

    def __init__(self, rows: Rows, use: Floats, pair: tuple[int, int], buyers: _Side) -> None:
        slow, fast = pair
        elsewhere = use @ np.ones(use.shape[1]) - use[:, slow] - use[:, fast]
        # Of each job what it has elsewhere, on the fast and on the slow generation: the latter is given up first.
        gpus = np.stack((elsewhere, use[:, fast], use[:, slow]), axis=1).ravel()
        some = np.flatnonzero(gpus > LEAST_GPUS)
        row, kind = some // 3, some % 3
        self._buyers = buyers
        self._first: list[int] = np.searchsorted(row, rows.start[:-1]).tolist()
        self._last: list[int] = (np.searchsorted(row, rows.start[1:]) - 1).tolist()
        self._gpus: list[float] = gpus[some].tolist()
        self._is_fast: list[bool] = (kind == 1).tolist()
        # The offer to buy for it; NOWHERE for none.
        self._offer: list[int] = np.where(kind == 2, buyers.offers(len(use))[row], NOWHERE).tolist()
        # In each unit: what a job does on the fast generation, and on the slow one or wherever it runs besides.
        self._on_fast: list[list[float]] = [unit[row, fast].tolist() for unit in rows.units]
        mean = use[row] / (use[row] @ np.ones(use.shape[1]))[:, None]
        self._else: list[list[float]] = [
            np.maximum((mean * unit[row]) @ np.ones(use.shape[1]), unit[row, slow]).tolist()
            for unit in rows.units
        ]

    def worth(self, parts: Parts, offer: int, gains: tuple[float, ...]) -> float:
        """Slow GPUs that one fast GPU may cost by an offer to buy, so that its account gains.

        The account runs as many GPUs less as it pays beyond one, of its last jobs. `gains` of the job by a fast
        GPU instead of a slow one are in the units of the rows: it must pay in all.
        """
        least = self._buyers.ratio[offer]
        if least <= 1:
            return least
        for leaf, _ in parts:
            last = self._last[leaf]
            if last < self._first[leaf]:
                return 0.0
            # Where the last job leaves the fast generation, one more like the first gets there.
            is_fast = self._has_fast(last, offer)
            for unit, gain in enumerate(gains):
                loss = self._on_fast[unit][last] - gain if is_fast else self._else[unit][last]
                if gain < (least - 1) * loss:
                    least = 1 + gain / loss
        return least

    def room(self, parts: Parts, offer: int, price: float) -> float:
        """GPUs of the fast generation for which the last jobs are those that `worth` judged by."""
        left = self._buyers.left[offer]
        if price <= 1:
            return left
        for leaf, part in parts:
            last = self._last[leaf]
            left = min(left, self._gpus[last] / (part * (price - 1)))
            if self._taken_from(last, offer) == offer:
                left = min(left, self._buyers.left[offer] / (1 + part * (price - 1)))
        return left

    def give_up(self, parts: Parts, offer: int, gpus: float) -> None:
        """The accounts run `gpus` less, and buy nothing more for these jobs, or for those that take their place."""
        for leaf, part in parts:
            last = self._last[leaf]
            taken_from = self._taken_from(last, offer)
            if taken_from != NOWHERE:
                self._buyers.left[taken_from] -= gpus * part
            self._gpus[last] -= gpus * part
            if self._gpus[last] <= LEAST_GPUS:
                self._last[leaf] = last - 1

    def _taken_from(self, last: int, offer: int) -> int:
        """The offer that shrinks as a last job is given up; NOWHERE for none."""
        if self._has_fast(last, offer):
            return offer
        return self._offer[last]

    def _has_fast(self, last: int, offer: int) -> bool:
        """Whether a last job runs on the fast generation by the time of an offer."""
        return self._is_fast[last] or 0 <= self._offer[last] < offer


class _Turns:
    """Whose turn it is to buy: the highest ratios first, but buyers that are much alike a little at a time.

    Else a claim that is a little higher than another's would get everything that is cheap. How much a buyer gets
    of a round falls with its ratio, down to nothing at NEAR times less than the highest.
    """

    def __init__(self, buyers: _Side, *, one_by_one: bool) -> None:
        self._buyers = buyers
        self._one_by_one = one_by_one or len(set(buyers.party)) > SMALL_MARKET
        self._next = 0  # of all offers, where each buys all that it wants before the next
        self._offers: dict[int, list[int]] = {}  # of each party, the highest last
        if not self._one_by_one:
            for offer in range(len(buyers.ratio) - 1, -1, -1):
                self._offers.setdefault(buyers.party[offer], []).append(offer)
        self._wants = {party: sum(buyers.left[one] for one in some) for party, some in self._offers.items()}
        self._round: list[tuple[int, float]] = []
        self._now, self._most, self.top = NOWHERE, 0.0, 0.0

    def next(self) -> tuple[int, float]:
        """The next offer to buy and how much it may buy now; NOWHERE when there is none."""
        if self._one_by_one:
            if self._next == len(self._buyers.ratio):
                return NOWHERE, 0.0
            self.top = self._buyers.ratio[self._next]
            return self._next, math.inf
        while self._now == NOWHERE or self._most <= LEAST_GPUS or not self._offers[self._now]:
            if not self._round:
                self._begin_round()
            if not self._round:
                return NOWHERE, 0.0
            self._now, self._most = self._round.pop()
        return self._offers[self._now][-1], self._most

    def bought(self, gpus: float) -> None:
        self._most -= gpus

    def finish(self) -> None:
        """The offer whose turn it is buys no more."""
        if self._one_by_one:
            self._next += 1
        else:
            self._offers[self._now].pop()

    def _begin_round(self) -> None:
        heads = {party: self._buyers.ratio[some[-1]] for party, some in self._offers.items() if some}
        self.top = max(heads.values(), default=0.0)
        for party, ratio in sorted(heads.items(), key=lambda one: one[1]):
            part = (ratio / self.top - 1 / NEAR) / (1 - 1 / NEAR)
            if part > 0:
                self._round.append((party, max(part / ROUNDS * self._wants[party], 2 * LEAST_GPUS)))


class _Book:
    """Makes trades; `share` (T, K) is what accounts have by then."""

    def __init__(
        self, snapshot: Snapshot, tree: Tree, shares: Divided, limits: TradeLimits, rows: Rows
    ) -> None:
        """Only the jobs in `rows` trade, in the names of their parties."""
        parties, member = parties_of(tree, snapshot.accounts.trades)
        self.share = shares.share.copy()
        self._settings: Settings = snapshot.settings
        self._tree, self._rows, self._party = tree, rows, parties[member[rows.account]]
        self._borders = Borders(snapshot.accounts, tree, shares, limits, leaves=rows.account.tolist())
        self._use: Floats = np.zeros(rows.able.shape)
        self._running: Floats = np.zeros(len(rows.job))
        self._run(np.arange(len(rows.account)))
        # Seller, buyer, slow and fast generation, GPUs of the fast one, price, both speed-ups.
        self._done: list[tuple[int, int, int, int, float, float, float, float]] = []

    def trades(self) -> tuple[Trade, ...]:
        """What crossed the borders of parties: one line for each two of them and each two generations."""
        done = np.array([one for one in self._done if one[0] != one[1]]).reshape(-1, 8)
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

    def _run(self, leaves: Ints) -> None:
        self._rows.run(self._use, self.share[self._rows.account], leaves)
        self._running = self._use @ np.ones(self._use.shape[1])

    def match(self, pair: tuple[int, int]) -> None:
        """Own jobs on a pair of generations change places by comparative speed."""
        margins(self._rows, self._use, self._party, ratios(self._rows, *pair), pair)

    def open(self, pair: tuple[int, int]) -> None:
        """All trades of one pair of generations: the highest ratios buy from the lowest."""
        rows, leaves = self._rows, len(self._rows.account)
        ratio = ratios(rows, *pair)
        if np.nansum(np.log(ratio) * rows.gpus) < 0:  # name the generations as most jobs find them
            pair, ratio = (pair[1], pair[0]), 1 / ratio
        ratio[~self._borders.deal(pair)[rows.account][rows.leaf]] = np.nan
        at = margins(rows, self._use, self._party, ratio, pair)
        sellers, buyers = (
            _Side(some, rows.leaf[some.row], self._party[rows.leaf[some.row]])
            for some in (at.sold, at.bought)
        )
        if (
            not sellers.left
            or not buyers.left
            or buyers.ratio[0] <= sellers.ratio[0] * self._settings.least_gain
        ):
            return
        self._match(pair, sellers, buyers, _Tails(rows, self._use, pair, buyers))
        change = np.zeros((leaves, self.share.shape[1]))
        for side, gives, takes in ((sellers, pair[1], pair[0]), (buyers, pair[0], pair[1])):
            gave, got = side.changes(leaves)
            change[:, gives] -= gave
            change[:, takes] += got
        traded = np.flatnonzero(np.abs(change).max(axis=1) > 0)
        if len(traded):
            self.share[rows.account[traded]] = np.maximum(
                self.share[rows.account[traded]] + change[traded], 0.0
            )
            self._sum_up()
            self._run(traded)

    def _sum_up(self) -> None:
        for level in self._tree.levels[:0:-1]:
            above = np.unique(self._tree.parent[level])
            self.share[above] = 0.0
            np.add.at(self.share, self._tree.parent[level], self.share[level])

    def _match(self, pair: tuple[int, int], sellers: _Side, buyers: _Side, tails: _Tails) -> None:
        slow, fast = pair
        rows, least = self._rows, self._settings.least_gain
        unused = rows.able[:, slow] * (rows.gpus - self._running)
        waiting = np.bincount(rows.leaf, unused, len(rows.account)).tolist()
        stock = np.bincount(rows.leaf, self._use[:, slow], len(rows.account)).tolist()
        second = _seconds(buyers) if self._settings.pricing == "second_price" else None
        gains = list(zip(*(buyers.least(unit[:, fast] - unit[:, slow]) for unit in rows.units), strict=True))
        bordered, done, i = self._borders.any, self._done, 0
        turns = _Turns(buyers, one_by_one=second is not None)
        while i < len(sellers.left):
            j, most = turns.next()
            low = sellers.ratio[i]
            if j == NOWHERE or turns.top <= low * max(least, 1.0):
                break
            giving, taking = sellers.parts(i), buyers.parts(j)
            high = tails.worth(taking, j, gains[j])
            if high <= low * least or high <= low:
                turns.finish()
                continue
            price = _between(low, high) if second is None else min(max(second[j], low), high)
            has = min([stock[leaf] / part for leaf, part in taking]) / price
            offered, wanted = sellers.left[i], min(most, has, tails.room(taking, j, price))
            if price > 1:
                offered = min(offered, min([waiting[leaf] / part for leaf, part in giving]) / (price - 1))
            if bordered:
                sides = (sellers.party[i], giving), (buyers.party[j], taking)
                offered, wanted = self._borders.room(*sides, pair, price, (offered, wanted))
            gpus = min(offered, wanted)
            if gpus > LEAST_GPUS:
                done.append((sellers.party[i], buyers.party[j], slow, fast, gpus, price, low, high))
                turns.bought(gpus)
                sellers.left[i] -= gpus
                sellers.gave[i] += gpus
                sellers.got[i] += gpus * price
                buyers.left[j] -= gpus
                buyers.gave[j] += gpus * price
                buyers.got[j] += gpus
                for leaf, part in taking:
                    stock[leaf] -= gpus * part * price
                for leaf, part in giving:
                    waiting[leaf] -= gpus * part * (price - 1)
                if price > 1:
                    tails.give_up(taking, j, gpus * (price - 1))
                if bordered:
                    self._borders.note(*sides, pair, price, gpus)
            if offered <= wanted:
                i += 1
            elif wanted == has or min(buyers.left[j], gpus) <= LEAST_GPUS:
                turns.finish()


def _between(low: float, high: float) -> float:
    return min(math.sqrt(low * high), low * SELLERS_PART)


def _seconds(buyers: _Side) -> list[float]:
    """Of each offer to buy, the ratio of the next lower one of another party; 0 where there is none."""
    found, second = [0.0] * len(buyers.ratio), 0.0
    for at in range(len(buyers.ratio) - 2, -1, -1):
        if buyers.party[at + 1] != buyers.party[at]:
            second = buyers.ratio[at + 1]
        found[at] = second
    return found
