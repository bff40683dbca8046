"""Builds histories in which the live policy made no fault, so that every anomaly found in them is false."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairshare.counterfactual.past import Past, PastJob
from tests.fairshare.pasts import HOUR, attempt, job, nodes, past, shared

# Workers, GPUs of a worker, and the probability of the shape.
SHAPES = ((1, 1, 0.5), (1, 2, 0.2), (1, 4, 0.15), (1, 8, 0.1), (2, 8, 0.05))
TENANTS, NODES, NODE_GPUS = 6, 6, 8
JOBS_A_DAY = 100


def faultless(seed: int, load: float, *, days: int = 1) -> Past:
    """Returns a history of six teams with one to three tickets each, on six nodes.

    The teams' jobs need the fraction `load` of the GPU time.
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    count, span = JOBS_A_DAY * days, 24 * HOUR * days
    shape = chance.choice(len(SHAPES), count, p=[often for *_, often in SHAPES])
    gpus = np.array([workers * each for workers, each, _ in SHAPES])[shape]
    lasts = chance.lognormal(0.0, 1.2, count)
    for _ in range(10):  # each pass makes the other jobs longer, to make up for the jobs that are cut off
        lasts *= load * NODES * NODE_GPUS * span / float((lasts * gpus).sum())
        lasts = np.clip(lasts, 120.0, 12 * HOUR)
    tickets = chance.integers(1, 4, TENANTS).astype(np.float64)
    parts = (tickets / tickets.sum()).tolist()
    tenant = chance.choice(TENANTS, count, p=parts).tolist()
    arrival = np.sort(chance.uniform(0.0, span, count)).tolist()
    wanted = [
        job(
            i,
            tenant[i],
            arrival[i],
            attempt(0, one, 0),
            workers=SHAPES[shape[i]][0],
            gpus=SHAPES[shape[i]][1],
        )
        for i, one in enumerate(lasts.tolist())
    ]
    return shared(past(wanted, parts=parts, machines=nodes(*[NODE_GPUS] * NODES), ends=span))


def wronged(history: Past, every: int, by: float) -> Past:
    """Returns the history with some jobs delayed by `by` seconds: those whose key is a multiple of `every`."""
    return replace(
        history,
        jobs=tuple(_later(one, by) if one.key % every == 0 else one for one in history.jobs),
    )


def _later(one: PastJob, by: float) -> PastJob:
    attempts = tuple(
        replace(t, begins=t.begins + by, ready=t.ready + by, ends=t.ends + by) for t in one.attempts
    )
    return replace(one, attempts=attempts, ended=None if one.ended is None else one.ended + by)
