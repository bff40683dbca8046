"""Picks the running gangs that must not be stopped now, before all other gangs are picked.

To pick a gang means to decide that it runs until the next round.
"""

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
    """Picks the running gangs that must not be stopped now, and leaves them on the nodes where they run.

    In a round that may not preempt, these are all running gangs. In a round that may preempt, these are four kinds of
    gangs, as far as limits allow them to run:

    - gangs with a worker on a closed node, because they could not return to this node
    - gangs that are protected by the minimum hold
    - services and sessions within the guarantees of their account and of all accounts above it
    - services and sessions whose notice of preemption has not been given or is not over

    After that, closed nodes (`closed` of the cluster) get no more gangs in this round.
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
    """Returns the running gangs that are protected by the minimum hold, as a mask (J,).

    The minimum hold lets a gang keep its GPUs for `min_hold` seconds after it got them. Preemptible gangs are not
    protected. In a round at the end of a quantum, a gang is also not protected from a waiting gang that may run on its
    generation and has an older claim.

    A waiting gang has a claim once its account, and all accounts above, have saved enough guaranteed GPU time for it.
    The claim is older in two cases:

    - The running gang is smaller, and got its GPUs after the account began to save for the waiting gang.
    - The running gang is larger, and got its GPUs after the account had saved enough.
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
        # A running gang of the same size stays: the waiting gang could have got these GPUs itself.
        before = (size < size[job]) & (jobs.resident <= began[i] + 1e-6)
        before |= (size > size[job]) & (jobs.resident < enough[i])
        young &= ~(there & before)
    return young


def _age_of_claims(facts: Facts, running: Bools, waits: Ints) -> tuple[Floats, Floats]:
    """Returns how long accounts have saved guaranteed GPU time for W waiting gangs, as two arrays (W,) of seconds.

    - The first array has the time since the account began to save for the gang.
    - The second array has the time since the account had saved enough to run the gang for one quantum. It is negative
      if not enough is saved yet.

    Accounts above save as well; each entry is the smallest of all these accounts.

    - `running` (J,): marks the running gangs.
    - `waits` (W,): the indices of the waiting gangs.
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
