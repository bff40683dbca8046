"""Tests that a round's data can be stored as bytes and read back unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fairshare.codec import UnreadableRecord, decode_decision, decode_snapshot, encode
from tests.fairshare.build import Account, Job, decide, snapshot, snapshots

EXAMPLES = settings(max_examples=50, deadline=None)


@EXAMPLES
@given(snapshots())
def test_a_round_is_stored_and_repeated_exactly(given):
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


def test_early_records_have_only_the_total_time_of_jobs():
    given = snapshot([(0, 4), (1, 4)], [Account()], [Job(0), Job(0)])
    early = replace(given, jobs=replace(given.jobs, attained=np.array([30.0, 0.1])))
    assert decode_snapshot(encode(early)).jobs.attained.sum(axis=1).tolist() == [30.0, 0.1]
    nothing = snapshot([], [Account()], [Job(0)])
    early = replace(nothing, jobs=replace(nothing.jobs, attained=np.zeros(1)))
    assert decode_snapshot(encode(early)).jobs.attained.shape == (1, 0)


def test_records_keep_the_time_and_the_time_of_jobs_by_generation():
    given = snapshot([(0, 4), (1, 4)], [Account()], [Job(0)])
    assert decode_snapshot(encode(given)).now == 0
    jobs = replace(given.jobs, attained=np.array([[1.0, 2.0]]), submitted=np.array([5.0]))
    again = decode_snapshot(encode(replace(given, now=7.25, jobs=jobs)))
    assert again.now == 7.25
    assert (again.jobs.attained.tolist(), again.jobs.submitted.tolist()) == ([[1, 2]], [5])


def test_a_decision_cannot_be_read_as_a_snapshot():
    given = snapshot([(0, 4)], [Account()], [Job(0)])
    with pytest.raises(UnreadableRecord, match="snapshot"):
        decode_snapshot(encode(decide(given, seed=0)))
