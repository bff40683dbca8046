"""Matches offers to sell GPUs with offers to buy GPUs, and sets the sizes and prices of the resulting trades (double
auction).

A pair of generations has a slow and a fast generation. The goods are GPUs of the fast generation. They are paid for
with GPUs of the slow generation, so that a price is a number of slow GPUs for one fast GPU.

Who trades:
- A *party* is an account that is set to trade, such as a team. In arrays, a party is the index of this account.
- A *trader* is one leaf account, such as a user, on one pair of generations. It trades in the name of its party. Its
  index is (index of the pair) × L + (index of the leaf account).

The *ratio* of an offer is its price limit: the lowest price at which the seller sells, or the highest price that the
buyer pays. On each pair, offers to sell are sorted from the lowest ratio, and offers to buy from the highest. The first
GPU for sale is matched with the first GPU wanted, the second with the second, and so on. A match is cancelled if the
buyer's ratio is too low: it must be at least a given multiple of the seller's ratio.

In small markets, each offer is cut into several *slices* of equal size, and slices are sorted instead of whole offers.
In large markets, each offer is one slice.

Sizes of arrays: O offers of one side, D matches (trades), S slices of offers, T accounts, L leaf accounts.
"""

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
    """The units and minimum sizes of trades in a market. Large markets use coarser units than small ones.

    - `slices`: the number of equal parts into which each offer is cut.
    - `step`: the unit of trades in GPUs of the fast generation. The size of a trade is a multiple of it.
    - `min_gpus`: the minimum size of a trade in GPUs. It is lower if one of the parties holds few GPUs.
    - `blocks`: sizes of blocks of parties with neighbouring indices. Parties first trade within blocks of the first
      size, then within blocks of the second size, and so on. The size 0 means one block of all parties. For example,
      with (4, 16, 0), parties 0 to 3 first trade among themselves, then parties 0 to 15, then all. If the tuple is
      empty, all parties trade with all from the start.
    """

    slices: int  # slices of each offer
    step: float  # GPUs; the GPUs of a trade are a multiple of it
    min_gpus: float  # fewest GPUs of a trade where both parties hold enough
    # Sizes of neighbourhoods: parties trade within the first size, then within the next, and at last (0) with all.
    # Empty: all trade with all at once.
    blocks: tuple[int, ...]

    def minimum(self, held: Floats) -> Floats:
        """Returns the minimum size of a trade for each account as a party, in GPUs, as an array (T,).

        `held` (T,): all GPUs that each account holds. The minimum is the fraction LEAST_PART of this number, but at
        least LEAST_TRADE and at most `min_gpus`.
        """
        found: Floats = np.clip(LEAST_PART * held, LEAST_TRADE, self.min_gpus)
        return found

    def whole(self, gpus: Floats) -> Floats:
        """Returns the sizes of trades in GPUs, rounded down to multiples of the step, as an array (D,).

        `gpus` (D,): the sizes before rounding. Sizes below LEAST_GPUS become 0.
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
    """O offers, either all to sell or all to buy GPUs. Each offer has one party, one pair of generations and one ratio
    (price limit).

    One or more traders of the party make an offer together. Each of them has a *part* of it. There are M parts in
    total.
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
        """Creates the offers from the blocks of GPUs that jobs would sell or buy.

        Blocks of the same pair, party and ratio become one offer.

        - `margin`: the blocks. Each belongs to one job and one pair of generations, and has a ratio.
        - `party` (L,): the party in whose name each leaf account trades.
        - `sells`: True if these are offers to sell, False if they are offers to buy.
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
        """Returns how each of D trades is divided among the traders of its offer.

        The result is three arrays with one entry for each trader of each trade: the index of the trade, the trader, and
        the trader's fraction of the trade.

        `offer` (D,): the offer that each trade belongs to.
        """
        first = np.searchsorted(self.offer, np.arange(len(self.ratio) + 1))
        count = np.diff(first)[offer]
        trade = np.repeat(np.arange(len(offer)), count)
        at = np.arange(len(trade)) - np.repeat(np.cumsum(count) - count, count) + first[offer][trade]
        return trade, self.trader[at], self.part[at]

    def affordable(self, price: Floats, has: Floats) -> Floats:
        """Returns how many fast GPUs the traders of each offer to buy can pay for, as an array (O,).

        - `price` (O,): the price that each offer would pay, in slow GPUs for one fast GPU.
        - `has`: the slow GPUs with which each trader can pay, by index of the trader.

        A trader with several offers pays first for the offer with the highest ratio.
        """
        by = np.argsort(self.trader, kind="stable")
        offer = self.offer[by]
        cost = self.gpus[offer] * self.part[by] * price[offer]
        pays = Queue.one_by_one(self.trader[by]).fill(cost, has)
        return np.bincount(offer, pays / price[offer], len(self.ratio)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Matches:
    """D matches, each of one offer to sell with one offer to buy. Each match is a trade."""

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

    - `has`: the slow GPUs with which each trader can pay, by index of the trader.
    - `pricing`: how a price is set. "between": the geometric mean of the ratios of the seller and the buyer.
      "second_price": the next ratio below the buyer's that another party offers on the pair, to buy or to sell, but at
      least the seller's ratio.
    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `grain`: the units and minimum sizes of trades.
    - `held` (T,): all GPUs of each account. A party that holds few GPUs may make smaller trades.
    """
    second = _seconds(sellers, buyers) if pricing == "second_price" else None
    sells, buys = _sliced(sellers, grain.slices, sells=True), _sliced(buyers, grain.slices, sells=False)
    price = _price(_cheapest(sellers, buyers), buyers.ratio, second)
    for _ in range(LOOKS):
        wants = buyers.affordable(price, has)
        supply, demand = _Side.of(sellers, sells, sellers.gpus, grain), _Side.of(buyers, buys, wants, grain)
        seller, buyer, gpus = _matched(
            supply, demand, least, grain, grain.minimum(held) / grain.step - ROUNDING
        )
        paid = _price(sellers.ratio[seller], buyers.ratio[buyer], None if second is None else second[buyer])
        bought, spent = (np.bincount(buyer, of, len(price)) for of in (gpus, gpus * paid))
        price = np.divide(spent, bought, out=price, where=bought > LEAST_GPUS)
    return Matches(seller, buyer, gpus, paid)


def _sliced(offers: Offers, slices: int, *, sells: bool) -> Ints:
    """Cuts each offer into `slices` equal parts, and sorts all slices. Returns the offer of each slice, as an array (O
    × slices,).

    Slices are sorted by pair of generations, and then by ratio, the best ratio first. The best ratio is the lowest if
    `sells` is true, and otherwise the highest.

    For sorting, the ratio of an offer is made worse with each of its slices. Slices of offers with nearly the same
    ratio therefore alternate, so that a slightly better ratio gains little.
    """
    worse = NEAR ** ((np.arange(slices) + 0.5) / slices)
    rank = offers.ratio[:, None] * (worse if sells else -1 / worse)
    found: Ints = np.lexsort((rank.ravel(), np.repeat(offers.pair, slices))) // slices
    return found


def _price(low: Floats, high: Floats, second: Floats | None) -> Floats:
    """Returns the prices of trades, in slow GPUs for one fast GPU. Each price is between `low` and `high`.

    - `low`: the seller's ratio in each trade.
    - `high`: the buyer's ratio in each trade.
    - `second`: the second price for the buyer of each trade (see `_seconds`), or None.

    If `second` is None, the price is the geometric mean of `low` and `high`, so that both sides gain by the same
    factor. Otherwise it is `second`, raised to `low` or lowered to `high` if it is not between them.
    """
    if second is None:
        return np.sqrt(low * high)
    found: Floats = np.clip(second, low * (1 + PRICED), high * (1 - PRICED))
    return found


def _cheapest(sellers: Offers, buyers: Offers) -> Floats:
    """Returns, for each offer to buy, the lowest ratio of all offers to sell on the same pair of generations, as an
    array (O,).

    If there is no offer to sell on the pair, the result is the ratio of the offer to buy.
    """
    first = np.searchsorted(sellers.pair, buyers.pair)
    is_sold = first < np.searchsorted(sellers.pair, buyers.pair, side="right")
    found = buyers.ratio.copy()
    found[is_sold] = sellers.ratio[first[is_sold]]
    return found


def _seconds(sellers: Offers, buyers: Offers) -> Floats:
    """Returns the second price of each offer to buy, as an array (O,).

    All offers on a pair of generations, to buy and to sell, are sorted from the highest ratio to the lowest. The second
    price of an offer is the ratio of the next offer in this order that another party makes. It is 0 if there is no such
    offer.
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
    """One side of a market, supply or demand, as S slices of offers. Each offer is cut into slices of equal size.

    Slices are sorted by pair of generations. Slices of one pair are in the order in which they are matched, the best
    ratio first.
    """

    offers: Offers
    offer: Ints  # (S,)
    steps: Floats  # (S,) number of the grain's steps in each slice

    @classmethod
    def of(cls, offers: Offers, offer: Ints, gpus: Floats, grain: Grain) -> _Side:
        """Creates one side of a market from offers and the order of their slices.

        - `offer` (S,): the offer of each slice, in the order of the slices.
        - `gpus` (O,): the GPUs of each offer, which are divided evenly among its slices.
        - `grain`: the number of slices of each offer, and the step. The size of a slice is rounded down to a multiple
          of the step.
        """
        return cls(offers, offer, np.floor(gpus[offer] / (grain.slices * grain.step) + ROUNDING))

    def keyed(self, size: int, blocks: int) -> tuple[Ints, Ints]:
        """Returns the slices that are not empty, in ascending order of keys, and the key of each. A slice of supply and
        a slice of demand may be matched only if their keys are equal.

        The key of a slice stands for its pair of generations and for the block of its party. A block is `size` parties
        with neighbouring indices. For example, with size 4, parties 0 to 3 are the first block.

        - `size`: parties in a block; 0 means one block of all parties.
        - `blocks`: at least the number of blocks. Use the same number for supply and demand, because keys depend on it.
        """
        some = np.flatnonzero(self.steps > 0)
        offer = self.offer[some]
        if not size:
            return some, self.offers.pair[offer]
        key = self.offers.pair[offer] * blocks + self.offers.party[offer] // size
        by = np.argsort(key, kind="stable")
        return some[by], key[by]

    def only(self, slices: Ints, steps: Floats) -> _Side:
        """Returns a copy of the side with other sizes of slices. Slices that are not in `slices` become empty.

        - `slices` (N,): indices of slices. An index may occur several times.
        - `steps` (N,): the size of each of these slices, in steps (`Grain.step`). The sizes of an index that occurs
          several times are added.
        """
        return replace(self, steps=np.bincount(slices, steps, len(self.steps)).astype(np.float64))

    def without(self, slices: Ints, steps: Floats) -> _Side:
        return replace(self, steps=self.steps - self.only(slices, steps).steps)


def _matched(
    supply: _Side, demand: _Side, least: float, grain: Grain, minimum: Floats
) -> tuple[Ints, Ints, Floats]:
    """Returns the matches of supply and demand as three arrays (D,): the offers to sell, the offers to buy, and the
    GPUs.

    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `grain`: the unit of trades, and the sizes of blocks of parties.
    - `minimum` (T,): the minimum size of a trade of each party, in steps (`Grain.step`). The lower one of the seller's
      and the buyer's minimum applies.

    If there are blocks, slices are matched more than once. A first matching of all parties decides how much each slice
    trades. These amounts are then matched within blocks of the first size, what remains within blocks of the next size,
    and so on.
    """
    if not grain.blocks:
        sold, bought, steps = _match_blocks(supply, demand, 0, least, minimum)
        return supply.offer[sold], demand.offer[bought], steps * grain.step
    # First decides who sells and buys, and how much in total; then with whom, nearby where possible.
    sold, bought, steps = _match_blocks(supply, demand, 0, least, np.zeros_like(minimum))
    supply, demand, found = supply.only(sold, steps), demand.only(bought, steps), []
    for size in grain.blocks:
        sold, bought, steps = _match_blocks(supply, demand, size, least, minimum)
        supply, demand = supply.without(sold, steps), demand.without(bought, steps)
        found.append((sold, bought, steps))
    sold, bought, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return supply.offer[sold], demand.offer[bought], steps * grain.step


def _match_blocks(
    supply: _Side, demand: _Side, size: int, least: float, minimum: Floats
) -> tuple[Ints, Ints, Floats]:
    """Matches slices whose parties are in the same block. Parties with neighbouring indices form blocks of `size`
    parties.

    Returns three arrays: the slices sold, the slices bought, and the size of each match, in steps. A step is the unit
    of trades (`Grain.step`).

    - `size`: parties in a block; 0 means one block of all parties.
    - `least`: the buyer's ratio must be at least this multiple of the seller's ratio.
    - `minimum` (T,): the minimum size of a trade of each party, in steps. It applies to the sum of all matches in which
      one party sells to another on the same pair of generations. The lower one of the two parties' minimums counts.
    """
    blocks = len(minimum) // max(size, 1) + 1
    (sells, here), (buys, there) = supply.keyed(size, blocks), demand.keyed(size, blocks)
    sold, bought, steps = _overlaps(here, supply.steps[sells], there, demand.steps[buys])
    sold, bought = sells[sold], buys[bought]
    seller, buyer = supply.offer[sold], demand.offer[bought]
    steps[supply.offers.ratio[seller] * least > demand.offers.ratio[buyer]] = 0.0
    worth = steps > 0
    if minimum.any():
        parties = supply.offers.party[seller], demand.offers.party[buyer]
        _, trade = np.unique(
            (supply.offers.pair[seller] * len(minimum) + parties[0]) * len(minimum) + parties[1],
            return_inverse=True,
        )
        worth &= np.bincount(trade, steps)[trade] >= np.minimum(*(minimum[one] for one in parties))
    return sold[worth], bought[worth], steps[worth]


def _overlaps(key: Ints, length: Floats, other_key: Ints, other_length: Floats) -> tuple[Ints, Ints, Floats]:
    """Returns where intervals of one list overlap intervals of another list with the same key.

    Intervals are given by their lengths. In each list, the intervals of one key are placed end to end in the given
    order, starting at 0. For example, lengths 3 and 2 are the intervals 0–3 and 3–5. With lengths 4 and 1 in the other
    list, the overlaps are 0–3, 3–4 and 4–5.

    - `key` and `other_key`: the key of each interval, in ascending order.
    - `length` and `other_length`: the length of each interval.

    The result is three arrays with one entry for each overlap: the index of the interval in the first list, the index
    of the interval in the second list, and the length of the overlap.
    """
    count = max(int(one.max(initial=-1)) + 1 for one in (key, other_key))
    room = np.maximum(np.bincount(key, length, count), np.bincount(other_key, other_length, count))
    begin = np.cumsum(room) - room
    starts, ends = [], []
    for of, size in ((key, length), (other_key, other_length)):
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
