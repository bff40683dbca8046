"""Computes on which generations an account's jobs would run if its share could be divided at will.

Turns are of whole gangs. A turn comes when an account as a whole is due time, on the generation on which it is due
most at that moment. To give the account's time on a generation to the jobs that gain most by it, these jobs claim
that time sooner than others and yield it later, by one gang in each direction. The time that accounts get of each
generation in the long run does not change (drift plus penalty: Neely, Stochastic Network Optimization, 2010, chapter
4).
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import across, anywhere
from fairshare.model import Bools, Floats, Jobs
from fairshare.policies.gandiva_fair.classes import SAME_SPEED, speeds_of
from fairshare.policies.gandiva_fair.job_order import alike
from fairshare.policies.gandiva_fair.own_order import Rows


def affinities(jobs: Jobs, able: Bools, share: Floats, evenly: Bools | None) -> Floats:
    """Returns how strongly each job should prefer a generation, as an array (J, K) of numbers from -1 to 1.

    The affinity is 1 where jobs of the same kind would spend all their time, and -1 where they would spend none. It
    is 0 for jobs that would not run, and for all jobs of an account whose jobs are equally fast on all generations
    where they may run, `able` (J, K). `share` (T, K) is what accounts have; `evenly` (T,) marks accounts whose jobs
    of one priority share evenly.
    """
    found, speed = np.zeros(able.shape), speeds_of(jobs, able)
    if not able.size:
        return found
    slow = anywhere(able & (speed < 1 / SAME_SPEED))
    choosy = np.bincount(jobs.account[slow], minlength=len(share)) > 0
    rows = Rows.of(jobs, able, np.where(choosy, across(share), 0.0), evenly)
    run, use = rows.run(share[rows.account], np.arange(len(rows.account)))
    if not len(run):
        return found
    steps = np.round(np.log(np.maximum(rows.units[0], 1e-9)) / -np.log(SAME_SPEED)).astype(np.int64)
    kind = alike(rows.leaf, *steps.T)
    time = np.zeros((int(kind.max()) + 1, able.shape[1]))
    np.add.at(time, kind[run], use)
    total = across(time)
    part = np.divide(time, total[:, None], out=np.full_like(time, 0.5), where=total[:, None] > 0)
    found[rows.job] = 2 * part[kind] - 1
    return found
