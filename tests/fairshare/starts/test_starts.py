"""Intervals of the expected start hold as often as they say, and simulated futures follow the policy and run times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from fairshare.starts.calibration import COVERAGE, LEAST_STEP, Expected, Margins, summarize
from fairshare.starts.run_times import MEDIAN, PastRunTimes
from fairshare.starts.scenarios import sample_starts
from tests.fairshare.bench_starts import Trace, generated, measured, workload_of
from tests.fairshare.build import Account, Job, situation, snapshot
from tests.fairshare.start_replay import FIRST, forecasts_of

QUANTUM = 60.0


def one_job(centre: float = 5.0, spread: float = 0.5) -> Expected:
    return Expected(np.array([centre]), np.array([spread]))


def coverage_of(errors: np.ndarray, margins: Margins) -> tuple[float, Margins]:
    """Returns the fraction of errors, in spreads, that are within the margins at their time, and the last margins."""
    held = 0
    for error in errors.tolist():
        held += -margins.below <= error <= margins.above
        margins = margins.after_below(missed=error < -margins.below).after_above(missed=error > margins.above)
    return held / len(errors), margins


@for_all(st.integers(0, 2**32 - 1), st.sampled_from(["normal", "laplace", "exponential"]), st.floats(-3, 3))
def test_intervals_hold_as_often_as_they_say_for_exchangeable_errors(
    seed: int, kind: str, shift: float
) -> None:
    chance = np.random.Generator(np.random.PCG64(seed))
    errors = getattr(chance, kind)(size=4000) + shift
    _, learned = coverage_of(errors[:1000], Margins())
    held, _ = coverage_of(errors[1000:], learned)
    assert held == pytest.approx(COVERAGE, abs=0.05)


@for_all(st.lists(st.floats(-8, 8), min_size=1, max_size=40))
def test_no_sequence_of_errors_makes_intervals_miss_often_for_long(cycle: list[float]) -> None:
    """Proves the bound of quantile tracking: what a margin has moved is bounded, so misses cannot add up."""
    margins, below, above = Margins(), 0, 0
    errors = (cycle * 2000)[:2000]
    for error in errors:
        is_below, is_above = error < -margins.below, error > margins.above
        below, above = below + is_below, above + is_above
        margins = margins.after_below(missed=is_below).after_above(missed=is_above)
        assert max(margins.below, margins.above) <= 9  # no error is greater than 8, and no step than 1
    most = (1 - COVERAGE) / 2 + (9 + 9) / LEAST_STEP / len(errors)
    assert max(below, above) / len(errors) <= most


def test_an_interval_is_within_time_and_in_order_whatever_was_learned() -> None:
    for margins in (Margins(), Margins(-3.0, 1.0), Margins(0.5, -2.0)):
        earliest, latest = margins.interval(one_job(), quantum=QUANTUM)
        assert 0 <= earliest[0] <= latest[0]


def test_more_spread_among_futures_makes_a_wider_interval() -> None:
    waits = np.array([[100.0, 10.0], [100.0, 1000.0], [100.0, np.inf]])
    expected = summarize(waits, quantum=QUANTUM, horizon=1e6)
    earliest, latest = Margins().interval(expected, quantum=QUANTUM)
    assert latest[0] - earliest[0] < latest[1] - earliest[1]


def past(*seconds: float, group: int = 1) -> PastRunTimes:
    return PastRunTimes.of(np.array(seconds), np.full((len(seconds), 1), group, dtype=np.int64))


def samples(history: PastRunTimes, elapsed: float, *, group: int = 1, expected: float = np.nan) -> np.ndarray:
    chance = np.random.Generator(np.random.PCG64(3))
    many = np.full(4000, elapsed)
    groups = np.full((len(many), len(history.levels)), group, dtype=np.int64)
    return history.remaining(groups, many, chance, expected=np.full(len(many), expected))


def test_run_times_are_like_those_of_similar_jobs_and_without_them_like_the_prior() -> None:
    history = past(*[600.0] * 50)
    assert np.median(samples(history, 0.0)) == 600
    assert np.median(samples(history, 0.0, group=2)) == pytest.approx(MEDIAN, rel=0.1)
    assert np.median(samples(history, 0.0, expected=7200)) == pytest.approx(7200, rel=0.1)


def test_what_has_run_longer_than_all_before_is_expected_to_run_for_long() -> None:
    history = past(*[600.0] * 50)
    assert np.median(samples(history, 500.0)) == 100
    left = [np.median(samples(history, elapsed)) for elapsed in (1e3, 1e4, 1e5)]
    assert left == sorted(left)
    assert left[-1] > 1e5


def test_a_job_starts_when_the_gang_before_it_ends() -> None:
    view = snapshot([(0, 4)], [Account()], [Job(0, gpus=4, on=(0,)), Job(0, gpus=4), Job(0, gpus=4)])
    found = sample_starts(situation(view), [1, 2], np.array([3600.0, 1200.0, 60.0]), seed=1)
    assert found[0] == pytest.approx(3600, rel=0.3)
    assert found[1] == pytest.approx(4800, rel=0.3)
    again = sample_starts(situation(view), [1, 2], np.array([3600.0, 1200.0, 60.0]), seed=1)
    assert found.tolist() == again.tolist()


def test_a_job_that_fits_nowhere_never_starts() -> None:
    view = snapshot([(0, 4)], [Account()], [Job(0, gpus=4, on=(0,)), Job(0, gpus=8)])
    assert np.isinf(sample_starts(situation(view), [1], np.array([60.0, 60.0]), seed=1)[0])


def test_intervals_of_a_replay_hold_in_wide_bounds_and_better_than_a_naive_estimate() -> None:
    made = forecasts_of(workload_of(Trace(generated, 5, 160), Path()), seed=5, scenarios=1)
    found = measured(one for one in made if one.stage == FIRST)
    assert found is not None
    assert found.made > 30
    assert 0.6 <= found.holds <= 0.98
    assert abs(found.holds - COVERAGE) < abs(found.naive_holds - COVERAGE)
