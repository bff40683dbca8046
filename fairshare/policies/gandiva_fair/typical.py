"""Estimates speeds of jobs that were not measured yet from other jobs of the same user."""

from __future__ import annotations

import numpy as np

from fairshare.columns import anywhere, count
from fairshare.model import Bools, Floats, Ints


def with_typical(rate: Floats, able: Bools, account: Ints, accounts: int) -> Floats:
    """Returns the rates of jobs, with missing rates estimated from measured jobs of the same account, as an array (J,
    K).

    `rate` (J, K) has steps per second, NaN where unknown. If a job was measured on one generation, its rate on another
    is estimated with the mean ratio between the two generations. The mean is over the jobs of the account that were
    measured on at least two generations. This corresponds to Gandiva_fair (EuroSys '20), where a user has one speed-up.

    If a job was never measured, its estimated rates have these mean ratios to each other, but are not steps per second.
    Rates that no job of the account can determine remain unknown.
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
    """Returns the mean speed of each account's jobs by generation, as logarithms, in an array (accounts, K).

    Only jobs with at least two known rates are used. The result is NaN where no such job was measured.
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
    """Returns, for each account, the sum of its rows of `values` (N, K), as an array (accounts, K).

    `account` (N,): the account of each row. `accounts`: the number of accounts.
    """
    return np.stack([np.bincount(account, column, accounts) for column in values.T], axis=1)
