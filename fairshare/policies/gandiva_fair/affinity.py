"""Computes on which generations each job should preferably run, given its account's share.

Only whole gangs can run, so that an account gets its GPU time of each generation in turns. Its next gang runs on the
generation on which the account is owed most GPU time. An account's time on a generation should be used by the jobs that
are much faster there. They may therefore move to it earlier than other jobs and stay there longer.

A gang moves to a generation once the GPU time that its account is owed there reaches a threshold. The gang's preference
raises or lowers the threshold by no more than the GPU time that the gang uses in one quantum. In the long run, accounts
get the same time of each generation as without the preference (drift plus penalty: Neely, Stochastic Network
Optimization, 2010, chapter 4).
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import across, anywhere
from fairshare.model import Bools, Floats, Jobs
from fairshare.policies.gandiva_fair.classes import SAME_SPEED, speeds_of
from fairshare.policies.gandiva_fair.job_order import alike
from fairshare.policies.gandiva_fair.own_order import Rows


def affinities(jobs: Jobs, able: Bools, share: Floats, evenly: Bools | None) -> Floats:
    """Returns how strongly each job should prefer each generation, as an array (J, K) of numbers from -1 to 1.

    The numbers come from an ideal division, in which accounts get exactly their shares and gangs need not run as a
    whole. It says on which generations jobs of one kind (same account and speeds) get their GPU time. The affinity to a
    generation is 1 if they get all of it there, 0 if they get half of it there, and -1 if they get none there. The
    affinity is 0 for jobs that would not run, and for accounts whose jobs are all equally fast on all generations where
    they may run.

    - `able` (J, K): whether each job may run on each generation.
    - `share` (T, K): each account's share of each generation, in GPUs.
    - `evenly` (T,): marks accounts that divide GPU time evenly among their jobs of equal priority.
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
