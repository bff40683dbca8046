"""Builds a synthetic week of a shared cluster under load. Jobs run in order of arrival, as far as they fit."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from fairshare.counterfactual.past import Attempt, NodeState, Past, PastJob, Rules
from fairshare.placement import fit
from tests.fairshare.pasts import WEEK

NODE_GPUS = 8
SPEED = (1.0, 2.0, 3.5)
USERS = 4
# Workers, GPUs of a worker, and the probability of the shape.
SHAPES = ((1, 1, 0.55), (1, 2, 0.2), (1, 4, 0.15), (1, 8, 0.05), (2, 4, 0.05))
# Number of waiting jobs that are tried when GPUs become free.
TRIED = 100


def week(tenants: int, jobs: int, seed: int, *, load: float = 0.65) -> Past:
    """Returns a week on three generations, with about one node of each generation per tenant.

    Each tenant's jobs come in bursts. Together the jobs need the fraction `load` of the cluster's GPU time.
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    tickets = chance.integers(1, 5, tenants).astype(np.float64)
    nodes = tuple(
        NodeState(0.0, i, i % len(SPEED), NODE_GPUS, NODE_GPUS) for i in range(tenants * len(SPEED))
    )
    wanted = _jobs(tenants, jobs, chance)
    lasts = chance.lognormal(0.0, 1.3, jobs)
    gpus = np.array([job.gpus for job in wanted])
    lasts *= load * len(nodes) * NODE_GPUS * WEEK / float((lasts * gpus).sum())
    lasts = np.clip(lasts, 60.0, WEEK / 4)
    return Past(
        ends=WEEK,
        generations=len(SPEED),
        parts=tuple((tickets / tickets.sum()).tolist()),
        user_tickets=((100.0,) * USERS,) * tenants,
        nodes=nodes,
        jobs=tuple(_served(wanted, lasts.tolist(), nodes)),
        rules=Rules(switch_cost=5.0),
    )


def _jobs(tenants: int, count: int, chance: np.random.Generator) -> list[PastJob]:
    shape = chance.choice(len(SHAPES), count, p=[often for *_, often in SHAPES])
    tenant = chance.integers(0, tenants, count)
    bursts = chance.uniform(0.0, WEEK, (tenants, 14))
    arrival = bursts[tenant, chance.integers(0, 14, count)] + chance.exponential(3 * 3600.0, count)
    found = []
    for i, moment in enumerate(np.sort(arrival % (WEEK - 3600.0)).tolist()):
        accepts = chance.random(len(SPEED)) < 0.7
        accepts[int(chance.integers(len(SPEED)))] = True
        workers, gpus, _ = SHAPES[int(shape[i])]
        found.append(
            PastJob(
                key=i,
                tenant=int(tenant[i]),
                user=int(chance.integers(USERS)),
                arrival=moment,
                workers=workers,
                gpus_per_worker=gpus,
                speeds=tuple(
                    speed if may else 0.0 for speed, may in zip(SPEED, accepts.tolist(), strict=True)
                ),
                priority=int(chance.random() < 0.05),
            )
        )
    return found


def _served(wanted: list[PastJob], lasts: list[float], nodes: tuple[NodeState, ...]) -> list[PastJob]:
    """Returns the jobs as they ran. `lasts` has the running time of each job in seconds, which is the same on any
    generation."""
    of_kind = [[one.node for one in nodes if one.generation == k] for k in range(len(SPEED))]
    free = [np.full(len(some), NODE_GPUS, dtype=np.int64) for some in of_kind]
    ends: list[tuple[float, int, int, tuple[int, ...]]] = []
    waiting: list[int] = []
    done: dict[int, PastJob] = {}
    came = 0
    while came < len(wanted) or ends:
        next_end = ends[0][0] if ends else np.inf
        if came < len(wanted) and wanted[came].arrival <= next_end:
            now = wanted[came].arrival
            waiting.append(came)
            tried = waiting[-1:]
            came += 1
        else:
            now, job, k, spot = heapq.heappop(ends)
            np.add.at(free[k], np.array(spot), wanted[job].gpus_per_worker)
            tried = waiting[:TRIED]
        for job in tried:
            one = wanted[job]
            for k in sorted(range(len(SPEED)), key=lambda k: -wanted[job].speeds[k]):
                found = fit(free[k], one.workers, one.gpus_per_worker) if one.speeds[k] > 0 else None
                if found is None:
                    continue
                np.subtract.at(free[k], found, one.gpus_per_worker)
                end = now + lasts[job]
                heapq.heappush(ends, (end, job, k, tuple(found.tolist())))
                places = tuple(of_kind[k][position] for position in found.tolist())
                done[job] = _ran(one, Attempt(k, now, min(now + 5.0, end), end, places))
                waiting.remove(job)
                break
    return [done.get(job, one) for job, one in enumerate(wanted)]


def _ran(job: PastJob, attempt: Attempt) -> PastJob:
    """Returns the job after the attempt, which is cut off at the end of the week. Leaves out an attempt that begins
    after the week."""
    if attempt.begins >= WEEK:
        return job
    if attempt.ends > WEEK:
        return replace(job, attempts=(replace(attempt, ready=min(attempt.ready, WEEK), ends=WEEK),))
    return replace(job, attempts=(attempt,), ended=attempt.ends)
