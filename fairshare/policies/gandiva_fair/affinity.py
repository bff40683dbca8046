"""Computes affinities: how strongly each job should prefer each generation (GPU type), given its account's share.

An account has a share of several generations, such as 3 GPUs of A100 and 1 of V100. A gang of 4 GPUs runs as a whole on
one generation. To use exactly the share, it would run on A100 for 3/4 of the time and on V100 for 1/4. The scheduler
tracks the GPU time that each account is owed on each generation. A gang moves to a generation once this time reaches a
threshold.

If all gangs had the same threshold, an account's time on a fast generation would go to any of its jobs. It should go to
the jobs that are much faster there. A high affinity to a generation therefore lowers the threshold, and a low affinity
raises it. Jobs with a high affinity move there earlier and stay longer. The threshold changes by no more than the GPU
time that the gang uses in one quantum. This delays or advances an account's use of a generation by a bounded amount, so
that in the long run accounts get the same time of each generation as without affinities (drift plus penalty: Neely,
Stochastic Network Optimization, 2010, chapter 4).
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import across, anywhere
from fairshare.model import Bools, Floats, Jobs
from fairshare.policies.gandiva_fair.classes import SAME_SPEED, speeds_of
from fairshare.policies.gandiva_fair.job_order import alike
from fairshare.policies.gandiva_fair.own_order import Rows


def affinities(jobs: Jobs, able: Bools, share: Floats, evenly: Bools | None) -> Floats:
    """Returns the affinity of each of J jobs to each of K generations, as an array (J, K) of numbers from -1 to 1.

    The numbers come from an ideal division of GPU time: each account gets exactly its share, and a gang may run in
    parts. Jobs of one account with about the same speeds are treated alike. The affinity of these jobs to a generation
    depends on the fraction of their GPU time that they get there: it is 1 if they get all of it there, 0 for half of
    it, and -1 for none.

    The affinity is also 0 in two cases:
    - The job, and all jobs treated like it, get no GPU time.
    - Each job of the account is about equally fast on all generations where it may run.

    Parameters:
    - `able` (J, K): whether each job may run on each generation.
    - `share` (T, K): each account's share of each generation, in GPUs.
    - `evenly` (T,): whether the account divides GPU time evenly among its jobs of equal priority. None: no account
      does.
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
