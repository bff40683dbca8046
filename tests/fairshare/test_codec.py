"""Rounds as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from fairshare.codec import UnreadableRecord, decode_decision, decode_snapshot, encode
from tests.fairshare.build import Account, Job, decide, snapshot, snapshots

EXAMPLES = settings(max_examples=50, deadline=None)


@EXAMPLES
@given(snapshots())
def test_a_round_is_kept_and_drawn_again_exactly(given):
    again = decode_snapshot(encode(given))
    assert encode(again) == encode(given)
    assert again.settings == given.settings
    decision = decide(given, seed=3)
    kept = decode_decision(encode(decision))
    assert encode(kept) == encode(decide(again, seed=3))
    assert kept.trades == decision.trades
    for name in ("run", "generation", "place_start", "place_node", "reason", "share", "guaranteed"):
        one, other = getattr(kept, name), getattr(decision, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-30], lambda data: b"x" * 100])
def test_a_damaged_record_is_refused(damage):
    data = encode(snapshot([(0, 4)], [Account()], [Job(0)]))
    with pytest.raises(UnreadableRecord):
        decode_snapshot(damage(data))


def test_a_decision_is_not_taken_for_a_snapshot():
    given = snapshot([(0, 4)], [Account()], [Job(0)])
    with pytest.raises(UnreadableRecord, match="snapshot"):
        decode_snapshot(encode(decide(given, seed=0)))
