"""Playing rounds ahead: when would a waiting gang get its turn if nothing else happened?"""

from __future__ import annotations

from collections.abc import Iterable
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
    return first_rounds(snapshot, [job], seed=seed, most=most)[job]


def first_rounds(snapshot: Snapshot, jobs: Iterable[int], *, seed: int, most: int) -> dict[int, int | None]:
    """Like `rounds_until_start`, of several jobs in one play."""
    found: dict[int, int | None] = dict.fromkeys(jobs)
    fill = replace(snapshot, settings=replace(snapshot.settings, may_preempt=False))
    decision = decide(fill, seed)
    for number in range(most + 1):
        if number:
            decision = decide(snapshot, seed + number)
        for job in decision.run.tolist():
            if job in found and found[job] is None:
                found[job] = number
        if None not in found.values():
            break
        if number:
            snapshot = after_quantum(snapshot, decision)
    return found


def after_quantum(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot one quantum later, with every gang where `decision` put it and all shares settled."""
    jobs, accounts, quantum = snapshot.jobs, snapshot.accounts, snapshot.settings.quantum
    received = received_gpus(snapshot, decision, shared=True) * quantum
    active = np.zeros(len(accounts.parent), dtype=bool)
    active[jobs.account] = True
    owed = settle(accounts.owed, decision.share, received, quantum, snapshot.settings.memory, active)
    return replace(
        snapshot,
        accounts=replace(accounts, owed=owed),
        jobs=_moved(jobs, decision, quantum),
    )


def received_gpus(snapshot: Snapshot, decision: Decision, *, shared: bool = False) -> Floats:
    """(T, K) GPUs that each leaf's picked gangs hold until the next round.

    With `shared` without those that they only have as nobody else wants them, which count for nobody's share.
    """
    jobs = snapshot.jobs
    received = np.zeros_like(decision.share)
    size = (jobs.workers * jobs.gpus)[decision.run].astype(np.float64)
    if shared and decision.only_idle is not None:
        size[np.isin(decision.run, decision.only_idle)] = 0.0
    np.add.at(received, (jobs.account[decision.run], decision.generation), size)
    return received


def _moved(jobs: Jobs, decision: Decision, quantum: float) -> Jobs:
    """The picked gangs where they were put; the others suspended, with the nodes where they ran last."""
    count, old = np.arange(len(jobs)), np.diff(jobs.place_start)
    running_on = np.full(len(jobs), NOWHERE, dtype=np.int64)
    running_on[decision.run] = decision.generation
    picked = running_on != NOWHERE
    sizes = old.copy()
    sizes[decision.run] = np.diff(decision.place_start)
    # Whose node each entry of place_node is: before, in the decision, and now.
    before, now = np.repeat(count, old), np.repeat(count, sizes)
    decided = np.repeat(decision.run, np.diff(decision.place_start))
    place_node = np.empty(len(now), dtype=np.int64)
    place_node[~picked[now]] = jobs.place_node[~picked[before]]
    place_node[picked[now]] = decision.place_node[np.argsort(decided, kind="stable")]
    stays = picked & (running_on == jobs.running_on) & (sizes == old)
    elsewhere = place_node[stays[now]] != jobs.place_node[stays[before]]
    stays[now[stays[now]][elsewhere]] = False
    return replace(
        jobs,
        running_on=running_on,
        resident=np.where(picked, np.where(stays, jobs.resident, 0.0) + quantum, 0.0),
        place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        place_node=place_node,
    )
