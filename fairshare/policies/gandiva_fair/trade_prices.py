"""Matches offers to sell with offers to buy, and sets the amounts and prices of trades between generations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.policies.gandiva_fair.margins import Margin
from fairshare.policies.gandiva_fair.queues import LEAST_GPUS, Queue

# Buyers whose ratios differ by less than this factor share what is cheap, and such sellers share the demand: each
# offers slices, and later slices rank as if their ratio were worse. So undercutting others does not pay.
NEAR = 1.5
# The fewest GPUs of the fast generation that two parties exchange: less is not worth a line in the book. In large
# markets the minimum may be higher, but it is at most this fraction of what the smaller party holds.
LEAST_TRADE, LEAST_PART = 0.01, 0.005
# The least relative difference between a price and the speed-up of either side.
PRICED = 1e-7
ROUNDING = 1e-6  # fraction of a step that counts as a rounding error
# How often prices are computed. What a buyer can pay depends on its price, which depends on the sellers that it meets.
LOOKS = 2


@dataclass(frozen=True, slots=True)
class Grain:
    """The units in which a market divides GPUs. A party is an account that is set to trade.

    - `slices`: the number of equal parts into which an offer is cut.
    - `step`: the unit of trades, in GPUs. The size of a trade is a multiple of it.
    - `line`: the minimum size of a trade, in GPUs. For a party that holds few GPUs, the minimum is lower.
    - `near`: sizes of blocks of neighbouring parties. Parties first trade within blocks of the first size, then within
      blocks of the next size, and so on. Size 0 means one block of all parties. If `near` is empty, all parties trade
      with each other from the start.
    """

    slices: int  # slices of each offer
    step: float  # GPUs; the GPUs of a trade are a multiple of it
    line: float  # fewest GPUs of a trade where both parties hold enough
    # Sizes of neighbourhoods: parties trade within the first size, then within the next, and at last (0) with all.
    # Empty: all trade with all at once.
    near: tuple[int, ...]

    def least(self, held: Floats) -> Floats:
        """Returns the minimum size of a trade of each party in GPUs, as an array (P,).

        A party is an account that is set to trade. The minimum grows with `held` (P,), the GPUs that the party holds,
        up to `line`.
        """
        found: Floats = np.clip(LEAST_PART * held, LEAST_TRADE, self.line)
        return found

    def whole(self, gpus: Floats) -> Floats:
        """Returns the sizes of D trades in GPUs, rounded down to whole steps, as an array (D,).

        Trades of less than LEAST_GPUS become zero.
        """
        steps = np.floor(gpus / self.step + ROUNDING)
        return np.where(gpus < LEAST_GPUS, 0.0, steps * self.step)


# With more than MANY parties each is too small a part of the market for slices to be worth their time. Such markets
# trade in hundredths of a GPU and between nearby parties, so that a change of one party changes few trades.
FINE, COARSE, MANY = Grain(8, 1e-9, LEAST_TRADE, ()), Grain(1, 0.01, 0.02, (8, 64, 512, 0)), 64


def grain_of(parties: int) -> Grain:
    return FINE if parties <= MANY else COARSE


@dataclass(frozen=True, slots=True)
class Offers:
    """O offers to sell or to buy. Each has one party, one pair of generations and one ratio.

    A party is an account that is set to trade. The ratio is the price limit: slow GPUs for one fast GPU. A *trader* is
    an account on a pair of generations; see `Margins`. If several traders of a party offer the same ratio on a pair,
    they form one offer.
    """

    pair: Ints  # (O,) pair of generations
    ratio: Floats  # (O,) the best offer of a pair first: the lowest ratio of sellers, the highest of buyers
    party: Ints  # (O,)
    gpus: Floats  # (O,) GPUs of the fast generation
    trader: Ints  # (M,) the trader of each part of an offer
    offer: Ints  # (M,) the offer of each part
    part: Floats  # (M,) the part as a fraction of its offer

    @classmethod
    def of(cls, margin: Margin, party: Ints, *, sells: bool) -> Offers:
        """Returns the offers that consist of the blocks in `margin`. A block is the GPUs that one job would sell or
        buy.

        - `party` (L,): the party in whose name each of L leaf accounts trades.
        - `sells`: True for offers to sell, False for offers to buy.
        """
        pair, leaf, ratio = margin.trader // len(party), margin.trader % len(party), np.round(margin.ratio, 9)
        by = np.lexsort((leaf, party[leaf], ratio if sells else -ratio, pair))
        pair, ratio, who, gpus = pair[by], ratio[by], party[leaf[by]], margin.gpus[by]
        new = np.ones(len(by), dtype=bool)
        new[1:] = (pair[1:] != pair[:-1]) | (ratio[1:] != ratio[:-1]) | (who[1:] != who[:-1])
        first, offer = np.flatnonzero(new), np.cumsum(new) - 1
        total = np.bincount(offer, gpus, len(first)).astype(np.float64)
        return cls(
            pair[first], ratio[first], who[first], total, margin.trader[by], offer, gpus / total[offer]
        )

    def parts(self, offer: Ints) -> tuple[Ints, Ints, Floats]:
        """Returns how each of D trades is divided among traders. `offer` (D,): the offer of each trade, which may have
        several traders.

        The result is three arrays with one entry for each trader in each trade: the trade, the trader, and the trader's
        fraction of the trade.
        """
        first = np.searchsorted(self.offer, np.arange(len(self.ratio) + 1))
        count = np.diff(first)[offer]
        trade = np.repeat(np.arange(len(offer)), count)
        at = np.arange(len(trade)) - np.repeat(np.cumsum(count) - count, count) + first[offer][trade]
        return trade, self.trader[at], self.part[at]

    def affordable(self, price: Floats, has: Floats) -> Floats:
        """Returns how many of the fast GPUs in each offer to buy can be paid for, as an array (O,).

        `price` (O,): the price of each offer, in slow GPUs for one fast GPU. `has`: slow GPUs with which each trader of
        the offers can pay. A trader with several offers pays for those with the highest ratio first.
        """
        by = np.argsort(self.trader, kind="stable")
        offer = self.offer[by]
        cost = self.gpus[offer] * self.part[by] * price[offer]
        pays = Queue.one_by_one(self.trader[by]).fill(cost, has)
        return np.bincount(offer, pays / price[offer], len(self.ratio)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Matches:
    """D matches, each of one offer to sell with one offer to buy."""

    seller: Ints  # (D,) the offer to sell
    buyer: Ints  # (D,) the offer to buy
    gpus: Floats  # (D,) GPUs of the fast generation
    price: Floats  # (D,) GPUs of the slow generation for each GPU of the fast generation


def match_offers(
    sellers: Offers,
    buyers: Offers,
    has: Floats,
    *,
    pricing: Literal["between", "second_price"],
    least: float,
    grain: Grain,
    held: Floats,
) -> Matches:
    """Matches offers to sell with offers to buy on each pair of generations, and sets the prices.

    A ratio is a number of slow GPUs for one fast GPU. Sellers with the lowest ratio and buyers with the highest ratio
    are matched first.

    A party is an account that is set to trade. A trader is an account on one pair of generations.

    - `has`: slow GPUs with which each trader can pay.
    - `pricing`: how prices are set. "between": the geometric mean of both ratios. "second_price": the highest ratio
      that another party offers, among those that do not exceed the buyer's ratio.
    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `grain`: how finely GPUs are divided.
    - `held` (P,): all GPUs of each party. A party with few GPUs may make trades smaller than `grain.line`.
    """
    second = _seconds(sellers, buyers) if pricing == "second_price" else None
    sells, buys = _sliced(sellers, grain.slices, sells=True), _sliced(buyers, grain.slices, sells=False)
    price = _price(_cheapest(sellers, buyers), buyers.ratio, second)
    for _ in range(LOOKS):
        wants = buyers.affordable(price, has)
        supply, demand = _Side.of(sellers, sells, sellers.gpus, grain), _Side.of(buyers, buys, wants, grain)
        seller, buyer, gpus = _matched(
            supply, demand, least, grain, grain.least(held) / grain.step - ROUNDING
        )
        paid = _price(sellers.ratio[seller], buyers.ratio[buyer], None if second is None else second[buyer])
        bought, spent = (np.bincount(buyer, of, len(price)) for of in (gpus, gpus * paid))
        price = np.divide(spent, bought, out=price, where=bought > LEAST_GPUS)
    return Matches(seller, buyer, gpus, paid)


def _sliced(offers: Offers, slices: int, *, sells: bool) -> Ints:
    """Cuts each offer into `slices` equal parts and returns the offer of each slice, as an array (O × slices,).

    Slices are sorted by pair of generations. Slices of the same pair are in the order in which they are matched.
    """
    worse = NEAR ** ((np.arange(slices) + 0.5) / slices)
    rank = offers.ratio[:, None] * (worse if sells else -1 / worse)
    found: Ints = np.lexsort((rank.ravel(), np.repeat(offers.pair, slices))) // slices
    return found


def _price(low: Floats, high: Floats, second: Floats | None) -> Floats:
    """Returns the prices of trades, in slow GPUs for one fast GPU, within the range from `low` to `high`.

    - `low`: the lowest price that the seller of each trade accepts.
    - `high`: the highest price that the buyer of each trade pays.
    - `second`: the second price of each trade: the highest price, not above the buyer's, that another party has offered
      for the same pair of generations. A party is an account that is set to trade.

    If `second` is None, a price is the geometric mean of `low` and `high`, so that both sides gain by the same ratio.
    Otherwise the price is `second`, or the nearest price within the range.
    """
    if second is None:
        return np.sqrt(low * high)
    found: Floats = np.clip(second, low * (1 + PRICED), high * (1 - PRICED))
    return found


def _cheapest(sellers: Offers, buyers: Offers) -> Floats:
    """Returns, for each of O offers to buy, the lowest ratio at which anybody sells on the same pair of generations, as
    (O,).

    A ratio is a number of slow GPUs for one fast GPU. If nobody sells on the pair, the result is the ratio of the offer
    to buy.
    """
    first = np.searchsorted(sellers.pair, buyers.pair)
    is_sold = first < np.searchsorted(sellers.pair, buyers.pair, side="right")
    found = buyers.ratio.copy()
    found[is_sold] = sellers.ratio[first[is_sold]]
    return found


def _seconds(sellers: Offers, buyers: Offers) -> Floats:
    """Returns the second price of each of O offers to buy, as an array (O,).

    A ratio is a number of slow GPUs for one fast GPU. A party is an account that is set to trade. The second price is
    the highest ratio, not above the buyer's own, at which another party offers to buy or to sell on the same pair of
    generations. It is 0 if there is no such offer.
    """
    pair, ratio, party = (
        np.append(getattr(buyers, name), getattr(sellers, name)) for name in ("pair", "ratio", "party")
    )
    by = np.lexsort((-ratio, pair))
    pair, ratio, party = pair[by], ratio[by], party[by]
    # Adjacent offers of the same party all get the first offer of the next party.
    new = np.ones(len(by), dtype=bool)
    new[1:] = (pair[1:] != pair[:-1]) | (party[1:] != party[:-1])
    first = np.append(np.flatnonzero(new), len(by))
    after = first[np.cumsum(new)]
    below = np.append(ratio, 0.0)[after]
    below[np.append(pair, -1)[after] != pair] = 0.0
    found = np.empty(len(by))
    found[by] = below
    return found[: len(buyers.ratio)]


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a market (supply or demand), as S slices of offers.

    Each offer is cut into slices of equal size. Slices are sorted by pair of generations. Slices of the same pair are
    in the order in which they are matched.
    """

    offers: Offers
    offer: Ints  # (S,)
    steps: Floats  # (S,) number of the grain's steps in each slice

    @classmethod
    def of(cls, offers: Offers, offer: Ints, gpus: Floats, grain: Grain) -> _Side:
        """Creates a side.

        - `offer` (S,): the offer of each slice.
        - `gpus` (O,): GPUs of each offer, divided evenly among its slices.
        - `grain`: the number of slices of an offer, and the step to which a slice is rounded down.
        """
        return cls(offers, offer, np.floor(gpus[offer] / (grain.slices * grain.step) + ROUNDING))

    def near(self, size: int, places: int) -> tuple[Ints, Ints]:
        """Returns two arrays: the slices that are not empty, and a key for each of them. Slices with the same key may
        be matched.

        Parties are grouped into blocks of `size` consecutive parties. Slices have the same key if they have the same
        pair of generations and their parties are in the same block. If `size` is 0, all parties are in one block.

        A key is computed as (index of the pair) × `places` + (index of the block). `places` must exceed the index of
        every block.
        """
        some = np.flatnonzero(self.steps > 0)
        offer = self.offer[some]
        if not size:
            return some, self.offers.pair[offer]
        key = self.offers.pair[offer] * places + self.offers.party[offer] // size
        by = np.argsort(key, kind="stable")
        return some[by], key[by]

    def only(self, slices: Ints, steps: Floats) -> _Side:
        """Returns a copy of the side in which only the slices in `slices` (N,) have GPUs.

        `steps` (N,): the size of each of these slices, in steps of the grain. If a slice occurs several times, its
        sizes are added.
        """
        return replace(self, steps=np.bincount(slices, steps, len(self.steps)).astype(np.float64))

    def without(self, slices: Ints, steps: Floats) -> _Side:
        return replace(self, steps=self.steps - self.only(slices, steps).steps)


def _matched(
    supply: _Side, demand: _Side, least: float, grain: Grain, line: Floats
) -> tuple[Ints, Ints, Floats]:
    """Returns the matches as three arrays: the offers to sell, the offers to buy, and the GPUs of each match.

    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `grain`: the unit of the sizes of matches, and the blocks of parties that trade with each other first.
    - `line` (P,): minimum size of a trade of each party, in steps of the grain. If the minimums of the two parties of a
      trade differ, the smaller one applies.

    If the grain has blocks, the function first decides who trades how much. Then it decides with whom: parties in the
    same block are matched first, in the order of `grain.near`.
    """
    if not grain.near:
        sold, bought, steps = _meeting(supply, demand, 0, least, line)
        return supply.offer[sold], demand.offer[bought], steps * grain.step
    # First decides who sells and buys, and how much in total; then with whom, nearby where possible.
    sold, bought, steps = _meeting(supply, demand, 0, least, np.zeros_like(line))
    supply, demand, found = supply.only(sold, steps), demand.only(bought, steps), []
    for size in grain.near:
        sold, bought, steps = _meeting(supply, demand, size, least, line)
        supply, demand = supply.without(sold, steps), demand.without(bought, steps)
        found.append((sold, bought, steps))
    sold, bought, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return supply.offer[sold], demand.offer[bought], steps * grain.step


def _meeting(
    supply: _Side, demand: _Side, size: int, least: float, line: Floats
) -> tuple[Ints, Ints, Floats]:
    """Matches slices whose parties are in the same block of `size` parties.

    Returns three arrays: the slices sold, the slices bought, and the size of each match in steps of the grain.

    - `size`: parties in a block. If it is 0, all parties can be matched with each other.
    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `line` (P,): minimum size of a trade of each party, in steps. The smaller minimum of the two parties applies.
    """
    places = len(line) // max(size, 1) + 1
    (sells, here), (buys, there) = supply.near(size, places), demand.near(size, places)
    sold, bought, steps = _overlaps(here, supply.steps[sells], there, demand.steps[buys])
    sold, bought = sells[sold], buys[bought]
    seller, buyer = supply.offer[sold], demand.offer[bought]
    steps[supply.offers.ratio[seller] * least > demand.offers.ratio[buyer]] = 0.0
    worth = steps > 0
    if line.any():
        parties = supply.offers.party[seller], demand.offers.party[buyer]
        _, trade = np.unique(
            (supply.offers.pair[seller] * len(line) + parties[0]) * len(line) + parties[1],
            return_inverse=True,
        )
        worth &= np.bincount(trade, steps)[trade] >= np.minimum(*(line[one] for one in parties))
    return sold[worth], bought[worth], steps[worth]


def _overlaps(pair: Ints, steps: Floats, other_pair: Ints, other_steps: Floats) -> tuple[Ints, Ints, Floats]:
    """Returns where intervals of one list overlap intervals of another list with the same key.

    - `pair` and `other_pair`: the key of each interval, such as its pair of generations, in ascending order.
    - `steps` and `other_steps`: the length of each interval.

    Only lengths are given. In each list, the intervals of one key follow one another without gaps, and the first of
    them begins at 0.

    The result is three arrays with one entry for each overlap: the interval of the first list, the interval of the
    second list, and the length of the overlap.
    """
    count = max(int(one.max(initial=-1)) + 1 for one in (pair, other_pair))
    room = np.maximum(np.bincount(pair, steps, count), np.bincount(other_pair, other_steps, count))
    begin = np.cumsum(room) - room
    starts, ends = [], []
    for of, size in ((pair, steps), (other_pair, other_steps)):
        starts.append(begin[of] + Queue.one_by_one(of).before(size))
        ends.append(starts[-1] + size)
    at = np.sort(np.concatenate([*starts, *ends]))
    low, size = at[:-1], np.diff(at)
    low, size = low[size > 0], size[size > 0]
    which = [np.searchsorted(start, low, side="right") - 1 for start in starts]
    both = size > 0
    for one, end in zip(which, ends, strict=True):
        both &= (one >= 0) & (low < np.append(end, 0.0)[one])
    return which[0][both], which[1][both], size[both]
