"""Tests that reported speeds are bounded, lies gain little, and suspicious teams are flagged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.evidence import (
    SLACK_OF_MODEL,
    SLACK_OF_TABLE,
    Source,
    bounded,
    evidence_of,
)
from fairshare.trading.changed_speeds import Samples, changed_with_trading
from tests.fairshare.bench_lies import LIES, Bound, gain, gain_of_splitting
from tests.fairshare.policies.teams import own_progress, teams, traded

NAN = np.nan


def believed(rate, model, *, table=None):
    """Returns the speed-ups that the policy believes and uses in trades, and the kind of evidence for each of them.

    Each is a list with one entry for each team. Every team has one job. Its speed-up is the second generation's speed
    divided by the first's.

    - `rate`: the reported steps per second, with one row for each team and one column for each generation.
    - `model`, `table`: see `evidence_of`.
    """
    rate = np.array(rate, dtype=float)
    evidence = evidence_of(rate, np.arange(len(rate)), np.array(model), table and np.array(table))
    after = bounded(rate, evidence)
    return after[:, 1] / after[:, 0], evidence.source.tolist()


def test_a_claim_far_from_what_most_teams_measured_of_the_model_counts_as_one_at_the_edge() -> None:
    ratio, source = believed([[1, 9.0], [10, 20.0], [3, 6.0], [2, 1.0]], [0, 0, 0, 0])
    assert ratio == pytest.approx([2 * (1 + SLACK_OF_MODEL), 2, 2, 2 / (1 + SLACK_OF_MODEL)])
    assert source == [Source.MODEL] * 4


def test_two_teams_do_not_suffice_to_bound_each_others_claims() -> None:
    ratio, source = believed([[1, 9.0], [10, 20.0]], [0, 0])
    assert ratio == pytest.approx([9, 2])
    assert source == [Source.OWN] * 2


def test_without_a_known_model_the_table_bounds_claims() -> None:
    ratio, source = believed([[1, 9.0], [1, 2.8]], [NOWHERE, 0], table=(1.0, 3.0))
    assert source == [Source.TABLE] * 2
    assert ratio == pytest.approx([3 * (1 + SLACK_OF_TABLE), 2.8])


def test_no_two_generations_are_further_apart_than_the_slack_allows() -> None:
    rate = np.array([[1.0, 9.0, 2.0], [4.0, 5.0, 0.1], [1.0, np.nan, 7.0]])
    table = np.array([1.0, 2.0, 3.0])
    off = bounded(rate, evidence_of(rate, np.arange(3), None, table)) / table
    spread = np.nanmax(off, axis=1) / np.nanmin(off, axis=1)
    assert spread == pytest.approx(np.full(3, 1 + SLACK_OF_TABLE))


def test_an_honest_team_unlike_all_others_trades_and_does_not_lose() -> None:
    rates = [np.tile([1.0, speed_up], (8, 1)) for speed_up in (1.2, 6.0)]
    view = teams(rates, (4, 4))
    view = replace(view, cluster=replace(view.cluster, table=np.array([1.0, 3.0])))
    share, trades = traded(view)
    assert trades
    without, now = (own_progress(rates, held, "in order") for held in (np.full((2, 2), 2.0), share))
    assert (now > without * 1.05).all()


def test_true_claims_do_not_change() -> None:
    ratio, _ = believed([[1, 2.0], [7, 14.1], [3, 5.95]], [0, 0, 0])
    assert ratio == pytest.approx([2, 14.1 / 7, 5.95 / 3])


def test_a_rate_without_evidence_is_not_traded_if_other_rates_have_evidence() -> None:
    rate = np.array([[1.0, 2.0, 50.0]] * 3)
    rate[1:, 2] = NAN
    evidence = evidence_of(rate, np.arange(3), np.zeros(3, dtype=int), None)
    after = bounded(rate, evidence)
    assert np.isnan(after[:, 2]).all()
    assert np.isfinite(after[:, :2]).all()


@pytest.mark.parametrize("bound", ["models", "table"])
@pytest.mark.parametrize("name", LIES)
def test_no_lie_gains_five_percent_where_claims_are_bounded(name: str, bound: Bound) -> None:
    gains = [gain(LIES[name], seed, bound=bound) for seed in range(12)]
    assert max(gains) < 0.05


def test_some_lies_gain_more_where_claims_are_believed() -> None:
    """Proves that a lie can gain more than five percent if the policy believes all reported speeds.

    So test_no_lie_gains_five_percent_where_claims_are_bounded passes because claims are bounded.
    """
    assert len(LIES) == 24
    assert max(gain(LIES["all × 1.25"], seed, bound="none") for seed in range(12)) > 0.05


def test_splitting_a_team_whose_jobs_are_alike_gains_next_to_nothing() -> None:
    assert max(gain_of_splitting(seed, alike=True) for seed in range(20)) < 0.01


def test_splitting_a_team_whose_jobs_differ_gains_little() -> None:
    """Proves that a team with different jobs gains little by splitting into two accounts, although this changes its
    jobs' order."""
    assert max(gain_of_splitting(seed) for seed in range(20)) < 0.05


def samples(fast_before: float, fast_after: float, *, noise: float = 0.02, count: int = 12) -> Samples:
    """Returns measured rates of team 1, which begins to trade half-way. Its rates on slow GPUs do not change."""
    chance = np.random.default_rng(0)
    generation = np.tile([0, 1], count)
    trading = np.arange(2 * count) >= count
    mean = np.where(generation == 0, 1.0, np.where(trading, fast_after, fast_before))
    ones = np.ones(2 * count, dtype=np.int64)
    return Samples(ones, 0 * ones, generation, mean * np.exp(noise * chance.normal(size=2 * count)), trading)


def test_a_team_whose_speed_ups_rise_as_it_begins_to_trade_is_flagged() -> None:
    assert changed_with_trading(samples(2.0, 3.0), 3) == pytest.approx([1, 1.5, 1], abs=0.05)
    assert changed_with_trading(samples(3.0, 2.0), 3)[1] == pytest.approx(1.5, abs=0.05)


def test_chance_and_faster_jobs_flag_no_team() -> None:
    assert changed_with_trading(samples(2.0, 2.0), 3).tolist() == [1, 1, 1]
    assert changed_with_trading(samples(2.0, 2.4, noise=0.5), 3).tolist() == [1, 1, 1]
    same = samples(2.0, 2.0)
    twice = Samples(same.team, same.model, same.generation, same.rate * (1 + same.trading), same.trading)
    assert changed_with_trading(twice, 3).tolist() == [1, 1, 1]  # a better program, on both generations
