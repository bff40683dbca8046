"""How fast jobs may be taken to be where nobody has measured them yet: as the other jobs of their user are."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Floats, Ints


def with_typical(rate: Floats, able: Bools, account: Ints, accounts: int) -> Floats:
    """(J, K) `rate` (NaN unknown) with what is unknown as in the mean of its account's measured jobs.

    The mean is of ratios between generations, over jobs that were measured on two of them at least, as in
    Gandiva_fair (EuroSys '20), where a user has one speed-up. What no job of the account tells stays unknown.
    """
    log = np.log(np.where(able & (np.nan_to_num(rate) > 0), rate, np.nan))
    known = np.isfinite(log)
    several = known.sum(axis=1) > 1
    count = np.zeros((accounts, rate.shape[1]))
    np.add.at(count, account[several], known[several])
    if not count.any():
        return rate
    main = count.argmax(axis=1)[account]  # the generation that most of the account's measured jobs know
    at_main = np.take_along_axis(log, main[:, None], axis=1)[:, 0]
    tells = several & np.isfinite(at_main)
    ratio, of = np.zeros(count.shape), np.zeros(count.shape)
    np.add.at(ratio, account[tells], np.where(known, log - at_main[:, None], 0.0)[tells])
    np.add.at(of, account[tells], known[tells])
    mean = np.divide(ratio, of, out=np.full(count.shape, np.nan), where=of > 0)[account]
    # A job's own scale is what it makes where it was measured, and any where it never ran.
    own = np.where(known & np.isfinite(mean), log - mean, np.nan)
    first = np.isfinite(own).argmax(axis=1)
    scale = np.nan_to_num(np.take_along_axis(own, first[:, None], axis=1))
    found: Floats = np.where(able & ~known & np.isfinite(mean), np.exp(scale + mean), rate)
    return found
