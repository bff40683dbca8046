"""Keeps gangs running that must not be stopped at the moment, before all other gangs are picked."""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.balances import guaranteed_after_trades
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.job_order import alike
from fairshare.policies.gandiva_fair.picked import Picked

# At most this many gangs, those of the accounts furthest behind, may take GPUs from gangs within their minimum hold.
_CLAIMS = 32


def pick_held(picked: Picked) -> None:
    """Picks the gangs that must not be stopped at the moment, and leaves them on the nodes where they run.

    Then closes the nodes that are marked in `closed` of the cluster: no further gang can be placed there.
    """
    facts, places = picked.facts, picked.places
    jobs, settings, closed = facts.jobs, facts.settings, facts.snapshot.cluster.closed
    running = places.running
    if settings.may_preempt:
        chosen = running & (jobs.on_any(closed) | _held_for_min_hold(facts, running))
        chosen |= facts.within_guarantee(running & facts.rooted)
        if jobs.unwarned is not None:
            chosen |= running & jobs.unwarned
    else:
        chosen = facts.holders()
    for job in facts.in_order(chosen):
        k = facts.running_on[job]
        if (not settings.may_preempt or picked.counts.allow(job, k)) and places.stay(job):
            picked.pick(job, k)
    if closed is not None:
        places.close(closed)


def _held_for_min_hold(facts: Facts, running: Bools) -> Bools:
    """Returns the gangs that may keep their GPUs because of the minimum hold, as a mask (J,).

    The minimum hold lets a gang that has just started keep its GPUs for some time. There is one exception: a waiting
    gang within its guarantee may take the GPUs of a running gang if its claim to GPUs began before the running gang
    started.

    When the waiting gang's claim began depends on the size of the running gang:
    - Smaller than the waiting gang: when the account of the waiting gang began to save GPU time for it.
    - Larger than the waiting gang: when that account had saved enough for it.
    - Same size: the exception does not apply, because the waiting gang could have got these GPUs when the running gang
      started.
    """
    jobs, size = facts.jobs, facts.sizes
    young = running & (jobs.resident < facts.settings.min_hold)
    if jobs.preemptible is not None:
        young &= ~jobs.preemptible
    if not young.any() or not facts.may_move:
        return young
    waits = np.flatnonzero(facts.sharing.any(axis=1) & (jobs.running_on == NOWHERE))
    began, enough = _age_of_claims(facts, running, waits)
    due = np.flatnonzero(enough > -1e-6)
    # One gang represents all of the same account, size and generations; those of the accounts furthest behind go first.
    account, choice = jobs.account[waits], facts.sharing @ (1 << np.arange(facts.sharing.shape[1]))
    one_each = alike(account[due], size[waits[due]], choice[waits[due]])
    due = due[np.unique(one_each, return_index=True)[1]]
    behind = facts.balances.total / np.maximum(facts.shares.share.sum(axis=1), 1e-12)
    for i in due[np.argsort(-behind[account[due]], kind="stable")][:_CLAIMS].tolist():
        job = int(waits[i])
        there = young & facts.able[job][jobs.running_on]
        before = (size < size[job]) & (jobs.resident <= began[i] + 1e-6)
        before |= (size > size[job]) & (jobs.resident < enough[i])
        young &= ~(there & before)
    return young


def _age_of_claims(facts: Facts, running: Bools, waits: Ints) -> tuple[Floats, Floats]:
    """Returns how long each waiting gang has had a claim to GPUs, as two arrays (W,) of seconds.

    An account saves unused guaranteed GPU time for its next gang. The first array has the time since the gang's account
    began to save for it. The second array has the time since the account had saved enough. An entry of the second array
    is negative if the account, or an account above it, has not saved enough yet.

    `running` (J,): marks the gangs that run. `waits` (W,): the waiting gangs.
    """
    jobs, tree, quantum = facts.jobs, facts.tree, facts.settings.quantum
    due, saved = guaranteed_after_trades(facts.shares).sum(axis=1), facts.balances.guaranteed
    runs, within = np.zeros(len(due)), facts.within_guarantee(running)
    np.add.at(runs, jobs.account[within], facts.sizes[within])
    left = saved + (due - tree.sums(runs)) * quantum
    began, enough = np.full(len(waits), np.inf), np.full(len(waits), np.inf)
    account, need = jobs.account[waits], facts.sizes[waits] * quantum
    for _ in tree.levels:
        known, earns = account != NOWHERE, np.maximum(due[account], 1e-12)
        began = np.where(known, np.minimum(began, saved[account] / earns), began)
        enough = np.where(known, np.minimum(enough, (left[account] - need) / earns), enough)
        account = np.where(known, tree.parent[account], NOWHERE)
    return began, enough
