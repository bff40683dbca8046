"""On which generations an account's jobs would run if its share could be divided at will.

Turns are of whole gangs, and come when an account as a whole is due time, on whatever generation it is due more just
then. So that the jobs that gain most by a generation have the account's time there nevertheless, they claim that time
sooner than others and give it up later: by one gang either way. What accounts get of each generation in the long run
stays the same (drift plus penalty: Neely, Stochastic Network Optimization, 2010, chapter 4).
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import across, anywhere
from fairshare.model import Bools, Floats, Jobs
from fairshare.policies.gandiva_fair.classes import SAME_SPEED, speeds_of
from fairshare.policies.gandiva_fair.line import alike
from fairshare.policies.gandiva_fair.own_order import Rows


def meant_for(jobs: Jobs, able: Bools, share: Floats, evenly: Bools | None) -> Floats:
    """(J, K) 1 where jobs like each one of its account would have all their time, -1 where they would have none.

    0 for jobs that would not run, and for all of accounts whose jobs are as fast wherever they may run, `able` (J, K).
    `share` (T, K) is what accounts have, `evenly` (T,) whose jobs of one priority share evenly.
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
