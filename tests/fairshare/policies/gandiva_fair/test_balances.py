"""Tests of balances, which record the GPU time that each account is owed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.model import Settings
from fairshare.policies.gandiva_fair.balances import Balances, settle
from fairshare.tree import Tree
from tests.fairshare.policies.gandiva_fair.playing import by_hand

FLAT = Tree.of(np.array([-1, -1]))
BOTH = np.array([True, True])


def after(balances, shares, received, *, largest=(1.0, 1.0), active=BOTH, memory=3600.0, tree=FLAT):
    got = np.array(received, dtype=np.float64)[:, None]
    quantum = Settings(quantum=60.0, memory=memory)
    return settle(balances, shares, tree, got, 60.0, quantum, active, np.array(largest))


def test_guaranteed_time_is_saved_and_never_a_debt():
    shares = by_hand([[4.0], [4.0]])
    first = after(Balances.none(2, 1), shares, [0.0, 480.0])
    assert first.guaranteed.tolist() == [240.0, 0.0]
    assert first.total.tolist() == [240.0, -240.0]
    second = after(first, shares, [480.0, 0.0])
    assert second.guaranteed.tolist() == [0.0, 240.0]
    assert second.total.tolist() == pytest.approx([0.0, 0.0])


def test_time_that_did_not_exist_is_owed_to_no_account():
    """Proves that GPU time that no account received is owed to no account.

    Each of the two accounts is due 240 GPU-seconds, but together they receive only 240. So each account's part is 120.
    The first receives 60 and is owed 60. The second receives 180 and is ahead by 60.
    """
    found = after(Balances.none(2, 1), by_hand([[4.0], [4.0]]), [60.0, 180.0])
    assert found.guaranteed.tolist() == [60.0, 0.0]
    assert found.total.tolist() == found.owed[:, 0].tolist() == pytest.approx([60.0, -60.0])


def test_missing_time_reduces_surplus_first():
    """Proves that an account is owed nothing if it received its guarantee and there was no GPU time for surplus."""
    found = after(Balances.none(2, 1), by_hand([[4.0], [1.0]], [[7.0], [1.0]]), [240.0, 60.0])
    assert found.total.tolist() == pytest.approx([0.0, 0.0])
    assert found.guaranteed.tolist() == [0.0, 0.0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=2, max_size=6))
def test_balances_sum_to_zero(parts):
    """Proves that balances sum to zero for random guarantees, surplus and received time.

    Together the leaves receive at most what all of them were due.
    """
    first, surplus, got = np.array(parts, dtype=np.float64).T
    share = first + surplus
    had = 60.0 * got * min(1.0, share.sum() / max(got.sum(), 1.0))
    many = len(parts)
    found = after(
        Balances.none(many, 1),
        by_hand(first[:, None].tolist(), share[:, None].tolist()),
        had,
        largest=(100.0,) * many,
        active=np.ones(many, dtype=bool),
        tree=Tree.of(np.full(many, -1)),
    )
    assert found.total.sum() == pytest.approx(0.0, abs=1e-6)
    behind_first = had.sum() < 60.0 * first.sum()
    assert not behind_first or (found.total <= 60.0 * first - had + 1e-6).all(), "surplus is missed first"


def test_balances_end_with_absence_and_may_grow_to_two_turns_of_the_largest_gang():
    shares = by_hand([[0.5], [0.5]])
    balances = Balances.none(2, 1)
    for _ in range(200):
        balances = after(balances, shares, [0.0, 60.0], largest=(16.0, 1.0), memory=60.0)
    assert balances.guaranteed[0] == balances.total[0] == 2 * 16 * 60.0
    gone = after(balances, shares, [0.0, 60.0], active=np.array([False, True]))
    assert gone.guaranteed[0] == gone.total[0] == gone.owed[0, 0] == 0


def test_a_team_is_charged_for_all_its_users():
    """Proves that GPU time that any user of a team receives reduces the guaranteed time that the team is owed.

    One user received its own guaranteed time and also that of the other user. So the other user is owed guaranteed
    time, but the team is owed none.
    """
    tree = Tree.of(np.array([-1, -1, 0, 0]))
    shares = by_hand([[4.0], [4.0], [2.0], [2.0]])
    found = after(
        Balances.none(4, 1),
        shares,
        [0.0, 240.0, 240.0, 0.0],
        largest=(1.0,) * 4,
        active=np.ones(4, dtype=bool),
        tree=tree,
    )
    assert found.guaranteed.tolist() == pytest.approx([0.0, 0.0, 0.0, 120.0])
    assert found.total.tolist() == pytest.approx([0.0, 0.0, -120.0, 120.0])
