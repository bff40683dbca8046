"""Tests that trades are worth something to both sides, and neither create nor lose GPU time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairshare.trading.gains import worth_to_buyer, worth_to_seller
from tests.fairshare.build import Account, Job, decide, snapshot

amount, ratio = st.floats(1e-3, 1e6), st.floats(0.1, 50)


def test_a_textbook_trade_is_worth_more_than_it_costs_to_both_sides() -> None:
    """Proves that both sides gain if a team with speed-up 1 sells two fast GPUs for four slow GPUs of a team with
    speed-up 4."""
    seller, buyer = worth_to_seller(2.0, 4.0, 1.0), worth_to_buyer(2.0, 4.0, 4.0)
    assert (seller.without, seller.with_trade, seller.gained, seller.gain) == (2.0, 4.0, 2.0, 1.0)
    assert (buyer.without, buyer.with_trade, buyer.gained, buyer.gain) == (4.0, 8.0, 4.0, 1.0)


@given(amount, ratio, ratio, ratio)
def test_both_sides_gain_exactly_if_the_price_is_between_their_speed_ups(fast, low, price, high) -> None:
    assume(abs(price / low - 1) > 1e-6)
    assume(abs(price / high - 1) > 1e-6)
    slow = fast * price
    assert (worth_to_seller(fast, slow, low).gained > 0) == (low < price)
    assert (worth_to_buyer(fast, slow, high).gained > 0) == (price < high)


@given(amount, amount, ratio, st.floats(1, 1e6))
def test_a_gain_does_not_depend_on_how_long_the_trade_lasted(fast, slow, speedup, seconds) -> None:
    for worth in (worth_to_seller, worth_to_buyer):
        once, long = worth(fast, slow, speedup), worth(fast * seconds, slow * seconds, speedup)
        assert long.gain == pytest.approx(once.gain, rel=1e-9, abs=1e-9)
        assert long.gained == pytest.approx(once.gained * seconds, rel=1e-6, abs=1e-6 * slow * seconds)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 6.0]), min_size=2, max_size=5), st.integers(2, 9))
def test_trades_of_a_round_sum_to_zero_and_every_side_gains(speed_ups, gpus) -> None:
    accounts = [Account(trades=True) for _ in speed_ups]
    jobs = [Job(t, rate={0: 1.0, 1: s}) for t, s in enumerate(speed_ups) for _ in range(2 * gpus)]
    decision = decide(snapshot([(0, gpus), (1, gpus)], accounts, jobs), seed=0)
    moved = np.zeros((len(accounts), 2))
    for one in decision.trades:
        moved[one.seller, [one.fast, one.slow]] += [-one.fast_gpus, one.slow_gpus]
        moved[one.buyer, [one.fast, one.slow]] += [one.fast_gpus, -one.slow_gpus]
        assert worth_to_seller(one.fast_gpus, one.slow_gpus, one.seller_speedup).gained > 0
        assert worth_to_buyer(one.fast_gpus, one.slow_gpus, one.buyer_speedup).gained > 0
    assert moved.sum(axis=0) == pytest.approx([0.0, 0.0], abs=1e-9)
    assert len(decision.trades) > 0 or max(speed_ups) / min(speed_ups) < 1.05
