"""How fast accounts are on each generation, by the measured rates of their own jobs."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Floats, Ints, Jobs
from fairshare.tree import Tree

# Two generations whose speeds differ by less than this ratio are as good as each other.
SAME_SPEED = 1.05


def speed_ups(jobs: Jobs, able: Bools, party: Ints, parties: int, pair: tuple[int, int]) -> Floats:
    """(parties,) mean of rate on the fast / rate on the slow of a `pair`, weighted by gang size; NaN when unmeasured.

    Over the jobs that may run on both and were measured on both. `party` (J,) is the index of the
    party to which a job belongs, negative for none.
    """
    slow, fast = pair
    rates = jobs.rate[:, [slow, fast]]
    counts = (party >= 0) & able[:, slow] & able[:, fast] & (np.nan_to_num(rates) > 0).all(axis=1)
    ratio = rates[counts, 1] / rates[counts, 0]
    gpus = (jobs.workers * jobs.gpus)[counts].astype(np.float64)
    weight = np.bincount(party[counts], gpus, parties)
    total = np.bincount(party[counts], gpus * ratio, parties)
    mean: Floats = np.divide(total, weight, out=np.full(parties, np.nan), where=weight > 0)
    return mean


def preferred_turns(tree: Tree, jobs: Jobs, able: Bools) -> Ints:
    """(T, K) the turn in which each account uses a generation when it cannot use all that it is offered.

    0 for the generation where the jobs below it are fastest. An account without measurements goes by
    those of all others; a generation that nobody measured counts as the best, so that it gets tried.
    """
    size, generations = len(tree.parent), able.shape[1]
    rates = np.where(able & (np.nan_to_num(jobs.rate) > 0), jobs.rate, 0.0)
    compared = (rates > 0).sum(axis=1) > 1
    rates, gpus = rates[compared], (jobs.workers * jobs.gpus)[compared].astype(np.float64)[:, None]
    relative = rates / rates.max(axis=1, keepdims=True, initial=0.0)
    total, weight = np.zeros((size, generations)), np.zeros((size, generations))
    np.add.at(total, jobs.account[compared], gpus * relative)
    np.add.at(weight, jobs.account[compared], gpus * (rates > 0))
    total, weight = tree.sums(total), tree.sums(weight)
    everywhere = _mean(total[tree.roots].sum(axis=0), weight[tree.roots].sum(axis=0), np.ones(generations))
    speed = _mean(total, weight, np.broadcast_to(everywhere, total.shape))
    step = -np.round(np.log(speed) / np.log(SAME_SPEED)).astype(np.int64)
    # Dense ranks in each row: how many different better steps there are.
    ordered = np.sort(step, axis=1)
    new = np.ones_like(ordered, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    better: Ints = (new[:, None, :] & (ordered[:, None, :] < step[:, :, None])).sum(axis=2)
    return better


def _mean(total: Floats, weight: Floats, otherwise: Floats) -> Floats:
    mean: Floats = np.divide(total, weight, out=otherwise.copy(), where=weight > 0)
    return mean
