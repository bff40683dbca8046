"""Who trades with whom, how much, and at what price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairshare.model import Floats, Ints
from fairshare.policies.gandiva_fair.margins import Margin
from fairshare.policies.gandiva_fair.queues import LEAST_GPUS, Queue

# Of buyers whose ratios differ by less than NEAR none buys all that is cheap, and of such sellers none sells all: each
# offers slices, of which later ones rank as if their ratio were worse. So it does not pay either to undercut others.
NEAR = 1.5
LEAST_TRADE = 0.01  # GPUs of the fast generation; less is not worth a line in the book
# By how much at least a price differs from the speed-ups of both sides.
PRICED = 1e-7
# What a buyer can pay depends on its price, and this on the sellers it meets: so often is that looked at.
LOOKS = 2


@dataclass(frozen=True, slots=True)
class Offers:
    """What parties would sell or buy, pair after pair; O offers, those of one party at one ratio are one.

    Accounts take part in offers as *traders* on a pair of generations, see `Margins`.
    """

    pair: Ints  # (O,) of generations
    ratio: Floats  # (O,) the best ones of a pair first: the lowest of sellers, the highest of buyers
    party: Ints  # (O,)
    gpus: Floats  # (O,) of the fast generation
    trader: Ints  # (M,) of jobs in offers
    offer: Ints  # (M,)
    part: Floats  # (M,) of its offer

    @classmethod
    def of(cls, margin: Margin, party: Ints, *, sells: bool) -> Offers:
        """`party` (L,) of accounts."""
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
        """The traders in trades with these offers (D,): which trade, which trader, and its part; (N,) each."""
        first = np.searchsorted(self.offer, np.arange(len(self.ratio) + 1))
        count = np.diff(first)[offer]
        trade = np.repeat(np.arange(len(offer)), count)
        at = np.arange(len(trade)) - np.repeat(np.cumsum(count) - count, count) + first[offer][trade]
        return trade, self.trader[at], self.part[at]

    def affordable(self, price: Floats, has: Floats) -> Floats:
        """(O,) GPUs that offers are for at prices (O,), the first ones first, if traders have `has` to pay with."""
        by = np.argsort(self.trader, kind="stable")
        offer = self.offer[by]
        cost = self.gpus[offer] * self.part[by] * price[offer]
        pays = Queue.one_by_one(self.trader[by]).fill(cost, has)
        return np.bincount(offer, pays / price[offer], len(self.ratio)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Met:
    """Offers to sell that met offers to buy; D of them."""

    seller: Ints  # (D,) an offer
    buyer: Ints  # (D,) an offer
    gpus: Floats  # (D,) of the fast generation
    price: Floats  # (D,) GPUs of the slow generation for each of them


def meet(
    sellers: Offers,
    buyers: Offers,
    has: Floats,
    *,
    pricing: Literal["between", "second_price"],
    least: float,
    slices: int,
) -> Met:
    """Offers to sell, cheapest first, with offers to buy, dearest first, on each pair of generations by itself.

    What buyers have to pay with is `has`, by trader. They meet where the ratio of their ratios is at least `least`.
    """
    second = _seconds(sellers, buyers) if pricing == "second_price" else None
    sells, buys = _sliced(sellers, slices, sells=True), _sliced(buyers, slices, sells=False)
    price = _price(_cheapest(sellers, buyers), buyers.ratio, second)
    for _ in range(LOOKS):
        wants = buyers.affordable(price, has) / slices
        seller, buyer, gpus = _overlaps(
            sellers.pair[sells], sellers.gpus[sells] / slices, buyers.pair[buys], wants[buys]
        )
        seller, buyer = sells[seller], buys[buyer]
        good = sellers.ratio[seller] * least <= buyers.ratio[buyer]
        seller, buyer, gpus = seller[good], buyer[good], gpus[good]
        paid = _price(sellers.ratio[seller], buyers.ratio[buyer], None if second is None else second[buyer])
        bought, spent = (np.bincount(buyer, of, len(price)) for of in (gpus, gpus * paid))
        price = np.divide(spent, bought, out=price, where=bought > LEAST_GPUS)
    return Met(seller, buyer, gpus, paid)


def _sliced(offers: Offers, slices: int, *, sells: bool) -> Ints:
    """(O × slices,) which offer each slice is of, pair after pair, those that go first, first."""
    worse = NEAR ** ((np.arange(slices) + 0.5) / slices)
    rank = offers.ratio[:, None] * (worse if sells else -1 / worse)
    found: Ints = np.lexsort((rank.ravel(), np.repeat(offers.pair, slices))) // slices
    return found


def _price(low: Floats, high: Floats, second: Floats | None) -> Floats:
    """Between what a seller asks at least and a buyer pays at most: where both gain in the same ratio, or `second`."""
    if second is None:
        return np.sqrt(low * high)
    found: Floats = np.clip(second, low * (1 + PRICED), high * (1 - PRICED))
    return found


def _cheapest(sellers: Offers, buyers: Offers) -> Floats:
    """(O,) of each offer to buy, the lowest ratio at which its pair is sold; its own where it is not."""
    first = np.searchsorted(sellers.pair, buyers.pair)
    is_sold = first < np.searchsorted(sellers.pair, buyers.pair, side="right")
    found = buyers.ratio.copy()
    found[is_sold] = sellers.ratio[first[is_sold]]
    return found


def _seconds(sellers: Offers, buyers: Offers) -> Floats:
    """(O,) of each offer to buy, the highest ratio below it of another party on its pair; 0 where there is none."""
    pair, ratio, party = (
        np.append(getattr(buyers, name), getattr(sellers, name)) for name in ("pair", "ratio", "party")
    )
    by = np.lexsort((-ratio, pair))
    pair, ratio, party = pair[by], ratio[by], party[by]
    # Of those side by side that are of one party the second is the first of the next ones.
    new = np.ones(len(by), dtype=bool)
    new[1:] = (pair[1:] != pair[:-1]) | (party[1:] != party[:-1])
    first = np.append(np.flatnonzero(new), len(by))
    after = first[np.cumsum(new)]
    below = np.append(ratio, 0.0)[after]
    below[np.append(pair, -1)[after] != pair] = 0.0
    found = np.empty(len(by))
    found[by] = below
    return found[: len(buyers.ratio)]


def _overlaps(pair: Ints, gpus: Floats, other_pair: Ints, other_gpus: Floats) -> tuple[Ints, Ints, Floats]:
    """Where intervals of two kinds, those of a pair laid end to end, overlap: which of each kind, and by how much."""
    count = max(int(one.max(initial=-1)) + 1 for one in (pair, other_pair))
    room = np.maximum(np.bincount(pair, gpus, count), np.bincount(other_pair, other_gpus, count))
    begin = np.cumsum(room) - room
    starts, ends = [], []
    for of, size in ((pair, gpus), (other_pair, other_gpus)):
        starts.append(begin[of] + Queue.one_by_one(of).before(size))
        ends.append(starts[-1] + size)
    at = np.sort(np.concatenate([*starts, *ends]))
    low, size = at[:-1], np.diff(at)
    low, size = low[size > 0], size[size > 0]
    which = [np.searchsorted(start, low, side="right") - 1 for start in starts]
    both = size > LEAST_TRADE
    for one, end in zip(which, ends, strict=True):
        both &= (one >= 0) & (low < np.append(end, 0.0)[one])
    return which[0][both], which[1][both], size[both]
