"""Estimates the speeds of jobs on generations where they were not measured, from other jobs of the same account.

Trades use these estimates (`trades.py`). Only ratios of a job's speeds between generations matter there.
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import anywhere, count
from fairshare.model import Bools, Floats, Ints


def with_typical(rate: Floats, able: Bools, account: Ints, accounts: int) -> Floats:
    """Returns the rates of all jobs, with estimates in place of unknown rates, as an array (J, K).

    An account's jobs that were measured on at least two generations determine its mean ratios of speeds between
    generations. The other jobs of the account are assumed to have the same ratios. Example: the account's jobs are on
    average 3 times as fast on A100 as on V100. A job that was measured only on V100, with 10 steps per second, is
    assumed to run 30 steps per second on A100. This corresponds to Gandiva_fair (EuroSys '20), where all jobs of a user
    have one speed-up.

    If a job was never measured, its estimates have the right ratios to each other, but are not in steps per second. A
    rate remains NaN if no job of the account allows an estimate.

    - `rate` (J, K): measured steps per second, NaN where unknown.
    - `able` (J, K): whether each job may run on each generation. Rates are estimated only where it may run.
    - `account` (J,): the account of each job.
    - `accounts`: the number of accounts.
    """
    known = able & (rate > 0)
    mean = _means(rate, known, account, accounts)
    lacks = np.isfinite(mean)[account] & able & ~known
    some = np.flatnonzero(anywhere(lacks))
    if not len(some):
        return rate
    # A job's scale is its rate where it was measured, or 1 if it never ran.
    typical, own = np.exp(mean.take(account[some], axis=0)), rate.take(some, axis=0)
    own = np.divide(own, typical, out=np.full(own.shape, np.nan), where=known.take(some, axis=0))
    first = np.isfinite(own).argmax(axis=1)[:, None]
    scale = np.nan_to_num(np.take_along_axis(own, first, axis=1), nan=1.0)
    found = rate.copy()
    found[some] = np.where(lacks.take(some, axis=0), scale * typical, found.take(some, axis=0))
    return found


def _means(rate: Floats, known: Bools, account: Ints, accounts: int) -> Floats:
    """Returns the mean speeds of each account's jobs on each generation, as an array (accounts, K) of logarithms.

    Each speed is relative to the job's speed on the account's main generation, on which most of its jobs were measured.
    Only jobs that were measured there and on another generation count. The result is NaN where there is no such job.

    - `rate` (J, K): steps per second.
    - `known` (J, K): whether the rate was measured.
    - `account` (J,): the account of each job.
    - `accounts`: the number of accounts.
    """
    some = np.flatnonzero(count(known) > 1)
    known, who = known.take(some, axis=0), account[some]
    log = np.log(rate.take(some, axis=0), out=np.zeros(known.shape), where=known)
    # The generation on which most of the account's jobs were measured.
    main = _sums(known, who, accounts).argmax(axis=1)[who][:, None]
    tells = known & np.take_along_axis(known, main, axis=1)
    ratio = np.where(tells, log - np.take_along_axis(log, main, axis=1), 0.0)
    of = _sums(tells, who, accounts)
    found = np.full(of.shape, np.nan)
    np.divide(_sums(ratio, who, accounts), of, out=found, where=of > 0)
    return found


def _sums(values: Floats | Bools, account: Ints, accounts: int) -> Floats:
    """Returns the sum of the rows of each account, as an array (accounts, K).

    - `values` (N, K): the rows.
    - `account` (N,): the account to which each row belongs.
    - `accounts`: the number of accounts.
    """
    return np.stack([np.bincount(account, column, accounts) for column in values.T], axis=1)
