"""Computes affinities: how strongly each job should prefer each generation (GPU type), from -1 to 1.

The scheduler tracks the GPU time that each account is owed on each generation. A gang moves to a generation once this
time reaches a threshold. A high affinity lowers the threshold, and a low affinity raises it. So an account's time on a
fast generation goes to those of its jobs that are much faster there.

The threshold changes by no more than the GPU time that the gang uses in one quantum. The use of a generation is
therefore delayed or advanced only by a bounded amount. In the long run, accounts get the same time of each generation
as without affinities (drift plus penalty: Neely, Stochastic Network Optimization, 2010, chapter 4).
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

    Each account's share is divided among its jobs, as if a gang could run on some of its GPUs only. The affinity of a
    job to a generation depends on the fraction of the job's GPU time that is there:
    - 1 for all of it, 0 for half of it, -1 for none of it
    - always 0 if the job gets no GPU time
    - always 0 if each job of the account is about equally fast on all generations where it may run

    Jobs of one account with about the same speeds count as one job.

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
