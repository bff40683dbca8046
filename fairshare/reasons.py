"""Determines on which generations jobs may run, and gives the reason why each job that is not picked waits.

Some reasons mean that the job can *never* run until the hardware or a limit changes. The others mean *not now*.
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import anywhere
from fairshare.model import NOWHERE, Bools, Cluster, Floats, Ints, Jobs, Reason, Snapshot
from fairshare.quotas import Left
from fairshare.tree import Tree


def may_run(snapshot: Snapshot, tree: Tree) -> tuple[Bools, Ints]:
    """Returns where each job could run now if no other job ran, as a mask (J, K) of jobs and generations.

    Limits and blocked jobs are taken into account. Also returns an array (J,) with the Reason of each job that may run
    on no generation.
    """
    cluster, accounts, jobs = snapshot.cluster, snapshot.accounts, snapshot.jobs
    exists = jobs.accepts & (np.bincount(cluster.node_generation, minlength=len(cluster.generations)) > 0)
    slots = worker_slots(cluster, cluster.installed, jobs.gpus)
    gang_fits = exists & (slots >= jobs.workers[:, None])
    caps = Left(tree.least_on_path(accounts.cap), tree.least_on_path(accounts.cap_total))
    allowed, to_all = _within(caps, jobs, gang_fits), open_to_all(cluster)
    now = allowed.copy()
    if not np.array_equal(to_all, cluster.installed):
        now &= worker_slots(cluster, to_all, jobs.gpus) >= jobs.workers[:, None]
    if cluster.closed is not None:
        now |= allowed & (jobs.running_on[:, None] == np.arange(len(cluster.generations)))
    reason = jobs.blocked.copy()
    nowhere = np.flatnonzero(~anywhere(now))
    hardware = hardware_reason(exists[nowhere], slots[nowhere], jobs.workers[nowhere])
    reason[nowhere] = np.select(
        [hardware != Reason.NONE, ~allowed[nowhere].any(axis=1), jobs.blocked[nowhere] != 0],
        [hardware, Reason.NEVER_OVER_QUOTA, jobs.blocked[nowhere]],
        default=Reason.NODES_AWAY,
    )
    return now & (reason == Reason.NONE)[:, None], reason


def hardware_reason(exists: Bools, slots: Ints, workers: Ints) -> Ints:
    """Returns the Reason why each gang fits on no generation of an empty cluster, or NONE if it fits, as an array (J,).

    - `exists` (J, K): whether the job accepts the generation and the cluster has it.
    - `slots` (J, K): the number of workers that fit, as `worker_slots` returns it.
    - `workers` (J,): workers of each gang.
    """
    return np.select(
        [
            ~exists.any(axis=1),
            ~(exists & (slots > 0)).any(axis=1),
            ~(exists & (slots >= workers[:, None])).any(axis=1),
        ],
        [Reason.NEVER_NO_SUCH_GENERATION, Reason.NEVER_WORKER_TOO_LARGE, Reason.NEVER_TOO_LARGE],
        default=Reason.NONE,
    )


def open_to_all(cluster: Cluster) -> Ints:
    """Returns the GPUs of each node that can be given to any gang, as an array (N,). A closed node has 0."""
    return cluster.capacity if cluster.closed is None else np.where(cluster.closed, 0, cluster.capacity)


def worker_slots(cluster: Cluster, gpus_of_node: Ints, gpus: Ints) -> Ints:
    """Returns how many workers of each job fit on the nodes of each generation together, as an array (J, K).

    `gpus_of_node` (N,): available GPUs of each node. `gpus` (J,): GPUs that one worker of each job needs.
    """
    sizes, which = np.unique(gpus, return_inverse=True)
    slots = np.zeros((len(sizes), len(cluster.generations)), dtype=np.int64)
    for i, size in enumerate(sizes.tolist()):
        np.add.at(slots[i], cluster.node_generation, gpus_of_node // size)
    found: Ints = slots[which]
    return found


def explain(
    jobs: Jobs,
    able: Bools,
    reason: Ints,
    order: Ints,
    picked: Bools,
    *,
    free: Floats,
    room: Left,
    most: Left,
    claims: Left | None,
) -> Ints:
    """Returns why each job does not run in this round, as an array (J,) of Reasons. Picked jobs get NONE.

    A job that may not run at all keeps its `reason` from `may_run`.

    - `able` (J, K): whether each job may run on each generation.
    - `order` (J,): rank of each job in its owner's order.
    - `free` (K,): GPUs that were given to no gang.
    - `room`: GPUs that accounts may still get under their limits, not counting limits on borrowing.
    - `most`: GPUs that accounts may still get under all limits, including those on borrowing.
    - `claims`: GPUs that an account may still get before its jobs are restricted to GPUs that nobody else can use.
      None: no such bound.
    """
    total = jobs.workers * jobs.gpus
    waits = ~picked & (reason == Reason.NONE)
    sharing = jobs.sharing(able)
    in_room = _within(room, jobs, able)
    in_quota = in_room & (_within(most, jobs, able) | ~sharing)
    enough_free = waits & (total <= free.max(initial=0))
    enough_free[enough_free] = (in_quota[enough_free] & (total[enough_free, None] <= free)).any(axis=1)
    shares = sharing & in_quota
    if claims is not None:
        shares &= _within(claims, jobs, able)
    now = np.select(
        [
            ~anywhere(in_room),
            ~anywhere(in_quota),
            enough_free,
            ~anywhere(shares),
            ~_first(jobs.account, order, sharing & waits[:, None], len(most.total)),
        ],
        [
            Reason.QUOTA_IN_USE,
            Reason.BORROWED_ENOUGH,
            Reason.FRAGMENTED,
            Reason.PREEMPTIBLE,
            Reason.OWN_JOBS_AHEAD,
        ],
        default=Reason.SHARE_IN_USE,
    )
    return np.where(picked, Reason.NONE, np.where(waits, now, reason)).astype(np.int64)


def _within(left: Left, jobs: Jobs, able: Bools) -> Bools:
    """Returns a copy of `able` with False for each generation on which the gang needs more GPUs than its account may
    still get.

    `left`: the GPUs that accounts may still get. `able` (J, K): whether each job may run on each generation.
    """
    limited = np.isfinite(left.each).any(axis=1) | np.isfinite(left.total)
    some = np.flatnonzero(limited[jobs.account])
    account, total = jobs.account[some], (jobs.workers * jobs.gpus)[some, None]
    found = able.copy()
    found[some] &= (total <= left.each[account]) & (total <= left.total[account, None])
    return found


def _first(account: Ints, order: Ints, wants: Bools, accounts: int) -> Bools:
    """Returns which jobs are first in line within their account for at least one generation, as a mask (J,).

    A job is first in line for a generation if it has the lowest rank of the account's jobs that want the generation.
    `order` (J,): rank of each job. `wants` (J, K): whether each job wants each generation. `accounts`: the number of
    accounts.
    """
    by_rank = np.empty_like(order)
    by_rank[order] = np.arange(len(order))
    found = np.zeros(len(account), dtype=bool)
    for there in wants[by_rank].T:
        some = by_rank[there][::-1]
        first = np.full(accounts, NOWHERE)
        first[account[some]] = some  # where an account occurs several times, the last one written counts
        found[first[first != NOWHERE]] = True
    return found
