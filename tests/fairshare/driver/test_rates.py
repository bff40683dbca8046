"""Tests that programs can report any speeds without harm to other teams.

Plans have only finite numbers. Other teams still trade, and make at least the progress of their private clusters.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairshare.check.policies import NEWEST, POLICIES
from fairshare.counterfactual.speeds import speeds_of
from fairshare.driver import Situation
from fairshare.fairness import own_speeds
from fairshare.model import Decision
from fairshare.rates import MOST_RATIO, within_reason
from tests.fairshare.build import Account, Job, snapshot

RATES = st.one_of(st.floats(min_value=5e-324, max_value=1.7e308), st.sampled_from([1e-300, 1.0, 1e300]))


def plan_beside(slow: float, fast: float, policy: str = NEWEST.name) -> Decision:
    """Returns the decision for three teams with 16 one-GPU jobs each, on eight GPUs of each of two generations.

    The first two teams have the speed-ups 1.2 and 4. `slow` and `fast` are the third team's rates on generations 0 and
    1.
    """
    rates = [{0: 1.0, 1: 1.2}, {0: 1.0, 1: 4.0}, {0: slow, 1: fast}]
    jobs = [Job(team, rate=rate) for team, rate in enumerate(rates) for _ in range(16)]
    view = snapshot([(0, 8), (1, 8)], [Account(trades=True)] * 3, jobs)
    return Situation.first(POLICIES[policy].make(view.settings), view).decide(1)


@given(slow=RATES, fast=RATES)
@example(slow=1.0, fast=1e300)
@example(slow=1e300, fast=1.0)
@example(slow=5e-324, fast=1.7e308)
@example(slow=1.7e308, fast=1.7e308)
@settings(max_examples=30, deadline=None)
def test_no_reported_rate_stops_the_trades_of_others(slow: float, fast: float) -> None:
    plan = plan_beside(slow, fast)
    assert np.isfinite(plan.share).all()
    assert plan.share.sum(axis=0) == pytest.approx([8, 8])
    figures = [(one.fast_gpus, one.slow_gpus, one.price) for one in plan.trades]
    assert figures
    assert np.isfinite(figures).all()
    progress = plan.share @ np.array([[1.0, 1.0, 1.0], [1.2, 4.0, 1.0]])
    private = np.array([8 / 3 * 2.2, 8 / 3 * 5.0])
    assert (progress[[0, 1], [0, 1]] >= private * (1 - 1e-6)).all()


@pytest.mark.parametrize("policy", [NEWEST.name, "market:1"])
@pytest.mark.parametrize("fast", [1e12, 1e300])
def test_a_rate_out_of_bounds_counts_as_the_bound(policy: str, fast: float) -> None:
    plan, same = plan_beside(1.0, fast, policy), plan_beside(1.0, MOST_RATIO, policy)
    assert plan.share == pytest.approx(same.share)


def test_rates_within_bounds_do_not_change() -> None:
    rates = np.array([[1.0, np.nan, 50.0], [0.0, 3.0, 1e50], [np.nan, np.nan, np.nan]])
    plain = rates[[0, 2]]
    assert within_reason(plain) is plain
    assert within_reason(rates)[1] == pytest.approx([0.0, 1 / MOST_RATIO, 1.0])


@pytest.mark.parametrize("fast", [1e300, 5e-324])
def test_reports_and_simulations_bound_rates_too(fast: float) -> None:
    rates = np.array([[1.0, 2.0], [1e300, fast], [1e-300, fast]])
    speeds = [own_speeds(rates, np.ones(3, dtype=np.int64))]
    speeds += speeds_of(rates, np.ones((3, 2), dtype=bool), np.zeros(3, dtype=np.int64))
    for speed in speeds:
        assert min(speed) == 1
        assert max(speed) <= MOST_RATIO * (1 + 1e-9)
