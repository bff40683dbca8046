"""Playing rounds ahead: when would a waiting gang get its turn if nothing else happened?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairshare.balance import settle
from fairshare.model import NOWHERE, Decision, Floats, Jobs, Snapshot
from fairshare.policy import decide


def rounds_until_start(snapshot: Snapshot, job: int, *, seed: int, most: int) -> int | None:
    """Quantum rounds until `job` is picked; 0 when free GPUs hold it at once; None when not within `most`.

    Assumes that nobody submits, ends or changes tickets meanwhile, so that it is a latest time as far as
    running jobs end sooner, and not a promise.
    """
    fill = replace(snapshot, settings=replace(snapshot.settings, may_preempt=False))
    if job in decide(fill, seed).run:
        return 0
    for number in range(1, most + 1):
        decision = decide(snapshot, seed + number)
        if job in decision.run:
            return number
        snapshot = after_quantum(snapshot, decision)
    return None


def after_quantum(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot one quantum later, with every gang where `decision` put it and all shares settled."""
    jobs, accounts, quantum = snapshot.jobs, snapshot.accounts, snapshot.settings.quantum
    received = received_gpus(snapshot, decision) * quantum
    active = np.zeros(len(accounts.parent), dtype=bool)
    active[jobs.account] = True
    owed = settle(accounts.owed, decision.share, received, quantum, snapshot.settings.memory, active)
    return replace(
        snapshot,
        accounts=replace(accounts, owed=owed),
        jobs=_moved(jobs, decision, quantum),
    )


def received_gpus(snapshot: Snapshot, decision: Decision) -> Floats:
    """(T, K) GPUs that each leaf's picked gangs hold until the next round."""
    jobs = snapshot.jobs
    received = np.zeros_like(decision.share)
    size = (jobs.workers * jobs.gpus)[decision.run].astype(np.float64)
    np.add.at(received, (jobs.account[decision.run], decision.generation), size)
    return received


def _moved(jobs: Jobs, decision: Decision, quantum: float) -> Jobs:
    running_on = np.full(len(jobs), NOWHERE, dtype=np.int64)
    running_on[decision.run] = decision.generation
    stays = running_on == jobs.running_on
    resident = np.where(running_on == NOWHERE, 0.0, np.where(stays, jobs.resident, 0.0) + quantum)
    sizes = np.zeros(len(jobs), dtype=np.int64)
    sizes[decision.run] = np.diff(decision.place_start)
    order = np.argsort(decision.run, kind="stable")
    nodes = [decision.place_node[decision.place_start[p] : decision.place_start[p + 1]] for p in order]
    return replace(
        jobs,
        running_on=running_on,
        resident=resident,
        place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        place_node=np.concatenate([*nodes, np.empty(0, dtype=np.int64)]).astype(np.int64),
    )
