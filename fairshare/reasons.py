"""Which jobs may run where, and why the others do not: *never* told apart from *not now*."""

from __future__ import annotations

import numpy as np

from fairshare.model import Bools, Cluster, Floats, Ints, Jobs, Reason, Snapshot
from fairshare.quotas import Left
from fairshare.tree import Tree


def may_run(snapshot: Snapshot, tree: Tree) -> tuple[Bools, Ints]:
    """(J, K) where each job could run now if the cluster were empty, and (J,) the Reason if nowhere."""
    cluster, accounts, jobs = snapshot.cluster, snapshot.accounts, snapshot.jobs
    total = (jobs.workers * jobs.gpus)[:, None]
    exists = jobs.accepts & (np.bincount(cluster.node_generation, minlength=len(cluster.generations)) > 0)
    slots = worker_slots(cluster, cluster.installed, jobs.gpus)
    worker_fits = exists & (slots > 0)
    gang_fits = worker_fits & (slots >= jobs.workers[:, None])
    in_quota = (total <= tree.least_on_path(accounts.cap)[jobs.account]) & (
        total <= tree.least_on_path(accounts.cap_total)[jobs.account, None]
    )
    allowed = gang_fits & in_quota
    now = allowed & (worker_slots(cluster, open_to_all(cluster), jobs.gpus) >= jobs.workers[:, None])
    if cluster.closed is not None:
        now |= allowed & (jobs.running_on[:, None] == np.arange(len(cluster.generations)))
    reason = jobs.blocked.copy()
    nowhere = np.flatnonzero(~now.any(axis=1))
    reason[nowhere] = np.select(
        [
            ~exists[nowhere].any(axis=1),
            ~worker_fits[nowhere].any(axis=1),
            ~gang_fits[nowhere].any(axis=1),
            ~allowed[nowhere].any(axis=1),
            jobs.blocked[nowhere] != 0,
        ],
        [
            Reason.NEVER_NO_SUCH_GENERATION,
            Reason.NEVER_WORKER_TOO_LARGE,
            Reason.NEVER_TOO_LARGE,
            Reason.NEVER_OVER_QUOTA,
            jobs.blocked[nowhere],
        ],
        default=Reason.NODES_AWAY,
    )
    return now & (reason == Reason.NONE)[:, None], reason


def open_to_all(cluster: Cluster) -> Ints:
    """(N,) the GPUs that any gang may be given."""
    return cluster.capacity if cluster.closed is None else np.where(cluster.closed, 0, cluster.capacity)


def worker_slots(cluster: Cluster, gpus_of_node: Ints, gpus: Ints) -> Ints:
    """(J, K): how many workers of `gpus` (J,) GPUs each the nodes of each generation hold together."""
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
    """(J,) the Reason of every job: that of `may_run`, or what stands in its way this round.

    `order` (J,) ranks the jobs as their owners want them; `free` (K,) is what nobody was given;
    `room` is what limits up the tree still allow, `most` the same within what may be borrowed, `claims` what
    is left before an account only gets what nobody else wants.
    """
    total = (jobs.workers * jobs.gpus)[:, None]
    waits = ~picked & (reason == Reason.NONE)
    sharing = jobs.sharing(able)
    in_room = able & _within(room, jobs, total)
    in_quota = in_room & (_within(most, jobs, total) | ~sharing)
    enough_free = in_quota & (total <= free)
    shares = sharing & in_quota
    if claims is not None:
        shares &= _within(claims, jobs, total)
    # The first waiting job of each account and generation; a job that is first nowhere waits for these.
    first = np.full(most.each.shape, len(jobs), dtype=np.int64)
    job, generation = np.nonzero(sharing & waits[:, None])
    np.minimum.at(first, (jobs.account[job], generation), order[job])
    is_first = (sharing & (first[jobs.account] == order[:, None])).any(axis=1)
    now = np.select(
        [
            ~in_room.any(axis=1),
            ~in_quota.any(axis=1),
            enough_free.any(axis=1),
            ~shares.any(axis=1),
            ~is_first,
        ],
        [
            Reason.QUOTA_IN_USE,
            Reason.BORROWED_ENOUGH,
            Reason.FRAGMENTED,
            Reason.ONLY_IDLE,
            Reason.OWN_JOBS_AHEAD,
        ],
        default=Reason.SHARE_IN_USE,
    )
    return np.where(picked, Reason.NONE, np.where(waits, now, reason)).astype(np.int64)


def _within(left: Left, jobs: Jobs, total: Ints) -> Bools:
    """(J, K) whether gangs of `total` (J, 1) GPUs keep within what is left."""
    if np.isinf(left.each).all() and np.isinf(left.total).all():
        return np.ones(jobs.accepts.shape, dtype=bool)
    found: Bools = (total <= left.each[jobs.account]) & (total <= left.total[jobs.account, None])
    return found


def never_reason(snapshot: Snapshot, job: int) -> Reason:
    """Why the job can never run with this hardware and these quotas, or why not before nodes return; or NONE."""
    _, reason = may_run(snapshot, Tree.of(snapshot.accounts.parent))
    return Reason(int(reason[job]))
