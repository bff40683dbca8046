"""Tests that fairness indices stay within their bounds and have their documented meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairshare.fairness import (
    delivered,
    finish_time_fairness,
    jain,
    max_min,
    own_speeds,
    unfinished_between,
)

amount = st.floats(0, 1e9)
positive = st.floats(1e-3, 1e6)
shares = st.lists(amount, min_size=1, max_size=30)


@given(shares)
def test_jains_index_is_between_one_nth_and_one(given: list[float]) -> None:
    index = jain(given)
    assert 1 / len(given) - 1e-12 <= index <= 1.0


@given(st.lists(positive, min_size=1, max_size=30), positive)
def test_both_indices_ignore_scale_and_order(given: list[float], factor: float) -> None:
    other = [share * factor for share in reversed(given)]
    assert jain(other) == pytest.approx(jain(given))
    assert max_min(other) == pytest.approx(max_min(given))


@given(positive, st.integers(1, 30))
def test_equal_shares_are_perfectly_fair(share: float, count: int) -> None:
    assert jain([share] * count) == pytest.approx(1.0, abs=1e-12)
    assert max_min([share] * count) == 1.0


@given(st.lists(st.integers(0, 1000).map(float), min_size=2, max_size=10))
def test_only_equal_shares_are_perfectly_fair(given: list[float]) -> None:
    assume(len(set(given)) > 1)
    assert jain(given) < 1.0
    assert max_min(given) < 1.0


@given(st.integers(1, 50), positive)
def test_one_account_with_everything_makes_the_lowest_index(count: int, share: float) -> None:
    assert jain([share] + [0.0] * (count - 1)) == pytest.approx(1 / count)


def test_indices_are_defined_for_no_accounts_and_for_zero_shares() -> None:
    assert (jain([]), max_min([]), jain([0.0, 0.0]), max_min([0.0, 0.0])) == (None, None, 1.0, 1.0)
    assert (delivered(3.0, 0.0), delivered(3.0, 4.0)) == (None, 0.75)


def test_jains_index_reproduces_the_example_of_its_paper() -> None:
    """Proves the example of Jain, Chiu and Hawe: if k of n users have equal shares and all others have nothing, the
    index is k/n."""
    assert jain([1.0] * 20 + [0.0] * 80) == pytest.approx(0.2)


table = st.lists(st.floats(0, 1e6), min_size=3, max_size=3).map(np.array)
weights = st.lists(st.floats(0.1, 20), min_size=3, max_size=3).map(np.array)


@given(table, weights, st.integers(1, 64), st.floats(1.0, 1e3))
def test_a_job_that_never_waits_on_enough_gpus_has_a_rho_of_one(held, weight, gpus, spare) -> None:
    assume(held.sum() > 1)
    seconds = held.sum() / gpus
    rho = finish_time_fairness(
        seconds=seconds, held=held, entitled=held * spare, weight=weight, gpus=gpus, sharers=1.0
    )
    assert rho == pytest.approx(1.0)


@given(table, table, weights, st.tuples(st.floats(1, 1e6), st.floats(1, 50), positive))
def test_rho_ignores_the_scale_of_weights_and_falls_with_more_sharers(
    held, entitled, weight, numbers
) -> None:
    seconds, sharers, factor = numbers
    assume(held.sum() > 1)
    assume((entitled * weight).sum() > 1)
    same = {"seconds": seconds, "held": held, "entitled": entitled, "gpus": 8}
    rho = finish_time_fairness(**same, weight=weight, sharers=sharers)
    assert finish_time_fairness(**same, weight=weight * factor, sharers=sharers) == pytest.approx(rho)
    # With a smaller own part the job takes longer alone, so sharing looks better.
    assert finish_time_fairness(**same, weight=weight, sharers=sharers * 2) <= rho * (1 + 1e-9)


def test_a_job_that_waits_as_long_as_it_runs_has_a_rho_of_two() -> None:
    held = entitled = np.array([800.0, 0.0])
    of = {"held": held, "weight": np.array([1.0, 4.0]), "gpus": 8, "sharers": 1.0}
    assert finish_time_fairness(seconds=100.0, entitled=entitled, **of) == pytest.approx(1.0)
    assert finish_time_fairness(seconds=200.0, entitled=2 * entitled, **of) == pytest.approx(2.0)


def test_a_part_of_half_the_gang_doubles_the_time_alone() -> None:
    rho = finish_time_fairness(
        seconds=100.0,
        held=np.array([800.0]),
        entitled=np.array([400.0]),
        weight=np.array([1.0]),
        gpus=8,
        sharers=1.0,
    )
    assert rho == pytest.approx(0.5)


@pytest.mark.parametrize(
    "lack", [{"seconds": 0.0}, {"held": np.zeros(1)}, {"entitled": np.zeros(1)}, {"sharers": 0.0}]
)
def test_rho_is_none_where_it_cannot_be_computed(lack: dict) -> None:
    of = {"seconds": 1.0, "held": np.ones(1), "entitled": np.ones(1), "sharers": 1.0}
    assert finish_time_fairness(**of | lack, weight=np.ones(1), gpus=1) is None


moment = st.integers(0, 100).map(float)


@given(st.lists(st.tuples(moment, moment), max_size=12), st.lists(st.tuples(moment, moment), max_size=5))
def test_the_mean_number_of_jobs_equals_a_count_by_the_second(jobs, stretches) -> None:
    jobs = [tuple(sorted(job)) for job in jobs]
    stretches = [tuple(sorted(one)) for one in stretches]
    begins, ends, since, until = (
        np.array([row[side] for row in rows], dtype=float)
        for rows, side in ((jobs, 0), (jobs, 1), (stretches, 0), (stretches, 1))
    )
    counted = [
        sum(b <= second < e for second in range(int(s), int(u)) for b, e in jobs) / (u - s) if u > s else 0.0
        for s, u in stretches
    ]
    assert unfinished_between(begins, ends, since, until) == pytest.approx(counted)


def test_own_speeds_are_means_weighted_by_size_over_jobs_measured_on_both() -> None:
    nan = np.nan
    rate = np.array([[1.0, 2.0, nan], [2.0, 12.0, nan], [nan, 5.0, nan], [3.0, nan, nan]])
    speed = own_speeds(rate, np.array([3, 1, 9, 9]))
    assert speed[:2] == pytest.approx([1.0, 3.0])
    assert np.isnan(speed[2])
    assert np.isnan(own_speeds(np.full((2, 3), nan), np.ones(2, dtype=int))).all()


@given(
    st.lists(
        st.lists(st.sampled_from([np.nan, 0.5, 1.0, 3.0]), min_size=3, max_size=3), min_size=1, max_size=8
    )
)
def test_the_slowest_generation_has_speed_one(rows: list[list[float]]) -> None:
    speed = own_speeds(np.array(rows), np.ones(len(rows), dtype=np.int64))
    known = speed[np.isfinite(speed)]
    assert len(known) == 0 or known.min() == 1.0
