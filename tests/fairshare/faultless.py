"""Histories that the live policy made without any fault: all that an analysis finds there is false."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairshare.counterfactual.past import Past, PastJob
from tests.fairshare.pasts import HOUR, attempt, job, nodes, past, shared

# Workers and GPUs of a worker, and how often.
SHAPES = ((1, 1, 0.5), (1, 2, 0.2), (1, 4, 0.15), (1, 8, 0.1), (2, 8, 0.05))
TENANTS, NODES, NODE_GPUS = 6, 6, 8
JOBS_A_DAY = 100


def faultless(seed: int, load: float, *, days: int = 1) -> Past:
    """Six teams of one to three parts of the tickets share six nodes; their jobs need `load` of what these have."""
    chance = np.random.Generator(np.random.PCG64(seed))
    count, span = JOBS_A_DAY * days, 24 * HOUR * days
    shape = chance.choice(len(SHAPES), count, p=[often for *_, often in SHAPES])
    gpus = np.array([workers * each for workers, each, _ in SHAPES])[shape]
    lasts = chance.lognormal(0.0, 1.2, count)
    for _ in range(10):  # what is cut off is made up for by the others
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
    """The same where every so manieth job ran so much later than it did, as if nobody had seen it."""
    return replace(
        history,
        jobs=tuple(_later(one, by) if one.key % every == 0 else one for one in history.jobs),
    )


def _later(one: PastJob, by: float) -> PastJob:
    attempts = tuple(
        replace(t, begins=t.begins + by, ready=t.ready + by, ends=t.ends + by) for t in one.attempts
    )
    return replace(one, attempts=attempts, ended=None if one.ended is None else one.ended + by)
