"""Tests that a job without measured speeds is assumed to be like its user's other jobs."""

from __future__ import annotations

import numpy as np
import pytest

from fairshare.policies.gandiva_fair.typical import with_typical
from tests.fairshare.build import Account, Job, decide, snapshot

NAN = np.nan


def filled(rate: list[list[float]], account: list[int]) -> np.ndarray:
    rates = np.array(rate)
    return with_typical(rates, np.ones(rates.shape, dtype=bool), np.array(account), max(account) + 1)


def test_an_unknown_rate_follows_from_the_jobs_scale_and_its_users_mean_ratio() -> None:
    found = filled([[1.0, 2.0], [1.0, 8.0], [NAN, 12.0], [3.0, NAN], [NAN, NAN]], [0] * 5)
    assert found == pytest.approx(np.array([[1, 2], [1, 8], [3, 12], [3, 12], [1, 4]]))


def test_other_users_jobs_do_not_count_and_known_rates_stay() -> None:
    rate = [[1.0, 2.0], [NAN, 12.0], [NAN, NAN]]
    assert filled(rate, [0, 1, 1]) == pytest.approx(np.array(rate), nan_ok=True)


def test_teams_trade_by_the_few_jobs_that_were_measured() -> None:
    """Proves that teams trade although only their running jobs have measured speeds.

    A seller runs waiting jobs on the GPUs that it gets in return, and waiting jobs have not been measured.
    """
    jobs = [
        Job(t, rate={0: 1.0, 1: speed_up} if number < 4 else {})
        for t, speed_up in ((0, 1.26), (1, 3.0))
        for number in range(8)
    ]
    (trade,) = decide(snapshot([(0, 4), (1, 4)], [Account(trades=True)] * 2, jobs), seed=0).trades
    assert (trade.seller, trade.buyer) == (0, 1)
    assert trade.fast_gpus > 1
