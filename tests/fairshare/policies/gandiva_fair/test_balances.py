"""What accounts are owed after some time."""

from __future__ import annotations

import numpy as np
import pytest

from fairshare.model import Settings
from fairshare.policies.gandiva_fair.balances import Balances, settle
from fairshare.tree import Tree
from tests.fairshare.policies.gandiva_fair.playing import by_hand

FLAT = Tree.of(np.array([-1, -1]))
BOTH = np.array([True, True])


def after(balances, shares, received, *, largest=(1.0, 1.0), active=BOTH, memory=3600.0, tree=FLAT):
    settings = Settings(quantum=60.0, memory=memory)
    got = np.array(received, dtype=np.float64)[:, None]
    return settle(balances, shares, tree, got, 60.0, settings, active, np.array(largest))


def test_guaranteed_time_is_saved_up_and_never_a_debt():
    shares = by_hand([[4.0], [4.0]])
    first = after(Balances.none(2, 1), shares, [0.0, 480.0])
    assert first.guaranteed.tolist() == [240.0, 0.0]
    assert first.total.tolist() == [240.0, -240.0]
    second = after(first, shares, [480.0, 0.0])
    assert second.guaranteed.tolist() == [0.0, 240.0]
    assert second.total.tolist() == pytest.approx([0.0, 0.0])


def test_time_that_nobody_had_is_owed_by_nobody():
    """Half of what both were due was there: what one had less than its half is owed, but not as a debt."""
    found = after(Balances.none(2, 1), by_hand([[4.0], [4.0]]), [60.0, 180.0])
    assert found.guaranteed.tolist() == [60.0, 0.0]
    assert found.total.tolist() == [0.0, 0.0]
    found = after(Balances.none(2, 1), by_hand([[1.0], [1.0]], [[4.0], [4.0]]), [60.0, 180.0])
    assert found.total.tolist() == found.owed[:, 0].tolist() == pytest.approx([60.0, -60.0])


def test_time_within_a_guarantee_makes_no_debt_where_others_could_not_use_theirs():
    found = after(Balances.none(2, 1), by_hand([[4.0], [1.0]], [[7.0], [1.0]]), [240.0, 60.0])
    assert found.total.tolist() == pytest.approx([0.0, 0.0])
    assert found.guaranteed.tolist() == [0.0, 0.0]


def test_balances_end_with_absence_and_grow_to_two_turns_of_the_largest_gang_at_least():
    shares = by_hand([[0.5], [0.5]])
    balances = Balances.none(2, 1)
    for _ in range(200):
        balances = after(balances, shares, [0.0, 60.0], largest=(16.0, 1.0), memory=60.0)
    assert balances.guaranteed[0] == balances.total[0] == 2 * 16 * 60.0
    gone = after(balances, shares, [0.0, 60.0], active=np.array([False, True]))
    assert gone.guaranteed[0] == gone.total[0] == gone.owed[0, 0] == 0


def test_a_team_is_charged_for_all_its_users():
    tree = Tree.of(np.array([-1, -1, 0, 0]))
    shares = by_hand([[4.0], [4.0], [2.0], [2.0]])
    found = after(
        Balances.none(4, 1),
        shares,
        [0.0, 240.0, 120.0, 120.0],
        largest=(1.0,) * 4,
        active=np.ones(4, dtype=bool),
        tree=tree,
    )
    assert found.total.tolist() == pytest.approx([0.0] * 4)
