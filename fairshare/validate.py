"""Checks the rules that every plan must keep, no matter which policy made it."""

from __future__ import annotations

import numpy as np

from fairshare.demand import EPSILON
from fairshare.guarantees import ROUNDING
from fairshare.model import NOWHERE, Bools, Decision, Floats, Ints, Jobs, Snapshot
from fairshare.quotas import with_room
from fairshare.reasons import may_run
from fairshare.tree import Tree

# The fewest seconds between two rounds: live rounds are started by a clock that ticks once a second.
SOONEST = 1.0


class InvalidPlan(Exception):
    """Raised when a policy returned a plan that must not be carried out. The message says which rule it breaks."""


def validate(plan: Decision, view: Snapshot) -> None:
    """Raises InvalidPlan unless the plan keeps all rules. A *fill round* is a round that may not preempt.

    - Every gang runs with all its workers, on nodes of one generation. Elastic gangs run with any number between their
      least and their most. No node gives out more GPUs than it has.
    - No blocked job runs, and no job runs on a generation that it does not accept. A fill round may leave such a gang
      where it is.
    - No gang starts beyond a limit or on a closed node.
    - In a fill round, every running gang that may keep its GPUs stays where it runs.
    - A round that takes back surplus stops no gang within its account's guarantee.
    - Every job either runs, or has a reason why it does not run.
    - If the plan asks for an early next round, that round is at least SOONEST seconds away.
    """
    jobs, cluster = view.jobs, view.cluster
    run, place, start = plan.run, plan.place_node, plan.place_start
    if len(np.unique(run)) != len(run) or np.any((run < 0) | (run >= len(jobs))):
        raise InvalidPlan("the plan picks a job twice, or picks a job that does not exist")
    shapes = {gpus.shape for gpus in (plan.share, plan.guaranteed) if gpus is not None}
    fits = len(plan.generation) == len(run) and len(start) == len(run) + 1 and start[-1] == len(place)
    if not fits or shapes != {view.accounts.owed.shape} or len(plan.reason) != len(jobs):
        raise InvalidPlan("the shapes of the plan's arrays do not match")
    if np.any((place < 0) | (place >= len(cluster.capacity))):
        raise InvalidPlan("a worker is on a node that does not exist")
    size = np.diff(start)
    if jobs.least is None or jobs.most is None:
        right = size == jobs.workers[run]
    else:
        # The owner may have lowered the most since a gang got its size.
        right = (jobs.least[run] <= size) & (size <= np.maximum(jobs.most, jobs.workers)[run])
    _only(right, run, "runs with a wrong number of workers")
    picked = np.repeat(np.arange(len(run)), np.diff(start))
    _only(
        cluster.node_generation[place] == plan.generation[picked],
        run[picked],
        "has a worker on a node with other GPUs than the job was assigned",
    )
    within_capacity(plan, view)
    runs = np.zeros(len(jobs), dtype=bool)
    runs[run] = True
    _only(
        (plan.reason == 0) == runs,
        np.arange(len(jobs)),
        "waits without a reason, or runs although it has a reason to wait",
    )
    stays = stays_put(plan, jobs)
    # A fill round may keep a running gang that a quantum round would have to stop.
    may = np.zeros(len(run), dtype=bool) if view.settings.may_preempt else stays[run]
    _only(may | (jobs.blocked[run] == 0), run, "is blocked but runs")
    _only(may | jobs.accepts[run, plan.generation], run, "runs on a generation that it does not accept")
    if cluster.closed is not None:
        _only(
            ~cluster.closed[place] | stays[run[picked]],
            run[picked],
            "starts on a node that takes no new jobs",
        )
    tree = Tree.of(view.accounts.parent)
    if not view.settings.may_preempt:
        _only(
            stays | ~_may_go_on(view, tree),
            np.arange(len(jobs)),
            "is stopped or moved although no quantum has ended",
        )
    elif view.settings.reclaim and plan.guaranteed is not None:
        # A buyer may have traded some of its guarantee for fewer but faster GPUs.
        bound = np.minimum(plan.guaranteed.sum(axis=1), plan.share.sum(axis=1))
        safe = _within(bound, view, tree) & _may_go_on(view, tree)
        _only(runs | ~safe, np.arange(len(jobs)), "is stopped although it is within its account's guarantee")
    _within_limits(plan, view, tree, ~stays[run] & ~_gets_no_more(plan, jobs))
    if plan.ask_again is not None and not SOONEST <= plan.ask_again < np.inf:
        raise InvalidPlan(
            f"the plan asks for the next round in {plan.ask_again:g} s, but the minimum is {SOONEST:g} s"
        )


def within_capacity(plan: Decision, view: Snapshot) -> None:
    """Raises InvalidPlan if the plan gives out more GPUs of a node than it has."""
    jobs, capacity = view.jobs, view.cluster.capacity
    gang = np.repeat(plan.run, np.diff(plan.place_start))
    used = np.bincount(plan.place_node, jobs.gpus[gang], len(capacity))
    if len(over := np.flatnonzero(used > capacity)):
        node = int(over[0])
        raise InvalidPlan(f"node {node} has {capacity[node]} GPUs, but the plan allocates {used[node]:g}")


def _only(holds: Bools, jobs: Ints, problem: str) -> None:
    if not holds.all():
        raise InvalidPlan(f"job {jobs[int(np.argmin(holds))]} {problem}")


def stays_put(plan: Decision, jobs: Jobs) -> Bools:
    """Returns which gangs keep their GPUs under the plan, with as many workers on each node as before, as a mask
    (J,)."""
    before = np.full(len(jobs), NOWHERE, dtype=np.int64)
    before[plan.run] = plan.generation
    stays: Bools = (jobs.running_on != NOWHERE) & (before == jobs.running_on)
    had = _sorted_places(np.arange(len(jobs)), jobs.place_start, jobs.place_node)
    has = _sorted_places(plan.run, plan.place_start, plan.place_node)
    had, has = had[:, stays[had[0]]], has[:, stays[has[0]]]
    if had.shape == has.shape and np.array_equal(had[0], has[0]):
        moved = had[0][had[1] != has[1]]
    else:  # some gangs now have another number of workers, so gangs are compared one by one
        moved = np.array(
            [
                job
                for job in np.flatnonzero(stays).tolist()
                if not np.array_equal(had[1][had[0] == job], has[1][has[0] == job])
            ],
            dtype=np.int64,
        )
    stays[moved] = False
    return stays


def _gets_no_more(plan: Decision, jobs: Jobs) -> Bools:
    """Returns which picked gangs run on their generation already, with as many workers or more, as a mask (P,)."""
    run = plan.run
    found: Bools = (jobs.running_on[run] == plan.generation) & (
        np.diff(plan.place_start) <= jobs.workers[run]
    )
    return found


def _sorted_places(gangs: Ints, start: Ints, place: Ints) -> Ints:
    """Returns the job and the node of each worker, sorted by job, then by node, as an array (2, workers).

    - `gangs`: the job of each gang.
    - `place`: the node of each worker.
    - `start`: the position in `place` where each gang begins.
    """
    job = np.repeat(gangs, np.diff(start))
    order = np.lexsort((place, job))
    found: Ints = np.stack([job[order], place[order]])
    return found


def _may_go_on(view: Snapshot, tree: Tree) -> Bools:
    """Returns which running gangs may keep the GPUs that they hold, as a mask (J,).

    A gang must give them up if its job can no longer run on the generation, or if one of its nodes has fewer GPUs than
    gangs hold on it.
    """
    jobs, cluster = view.jobs, view.cluster
    able, _ = may_run(view, tree)
    holds = np.flatnonzero(jobs.running_on != NOWHERE)
    may = np.zeros(len(jobs), dtype=bool)
    may[holds] = able[holds, jobs.running_on[holds]]
    # Where a node has fewer GPUs than its gangs hold, some gang has to stop.
    gang = np.repeat(np.arange(len(jobs)), np.diff(jobs.place_start))
    runs = (jobs.running_on != NOWHERE)[gang]
    held = np.bincount(jobs.place_node[runs], jobs.gpus[gang[runs]], len(cluster.capacity))
    short = held > cluster.capacity
    may[gang[runs & short[jobs.place_node]]] = False
    return may


def _within(bound: Floats, view: Snapshot, tree: Tree) -> Bools:
    """Returns which running gangs belong to accounts within their limits and within `bound` (T,) GPUs, as a mask (J,).

    All accounts above must be within their limits and bounds, too. Preemptible gangs always get False, and their GPUs
    do not count towards `bound`.
    """
    jobs = view.jobs
    shares, size = jobs.running_on != NOWHERE, jobs.workers * jobs.gpus
    if jobs.preemptible is not None:
        shares &= ~jobs.preemptible
    held = _used(view, tree, np.flatnonzero(jobs.running_on != NOWHERE), jobs.running_on, size)
    sharing = _used(view, tree, np.flatnonzero(shares), jobs.running_on, size).sum(axis=1)
    each, total = _beyond(view, held)
    above = (sharing > bound + ROUNDING) | each.any(axis=1) | total
    for level in tree.levels[1:]:
        above[level] |= above[tree.parent[level]]
    found: Bools = shares & ~above[jobs.account]
    return found


def _used(view: Snapshot, tree: Tree, gangs: Ints, generation: Ints, size: Ints) -> Floats:
    """Returns the GPUs of each generation that the gangs `gangs` use, summed for each account and all accounts below
    it, as (T, K).

    `gangs`: indices of jobs. `generation` and `size` (J,): the generation on which each gang runs, and its GPUs.
    """
    jobs, used = view.jobs, np.zeros(view.accounts.cap.shape)
    np.add.at(used, (jobs.account[gangs], generation[gangs]), size[gangs])
    return tree.sums(used)


def _beyond(view: Snapshot, used: Floats) -> tuple[Bools, Bools]:
    """Returns where accounts exceed a limit, as two masks.

    `used` (T, K): GPUs of each generation that each account uses. The first mask (T, K) is for limits on one
    generation. The second mask (T,) is for limits on the GPUs or the cost of all generations together.
    """
    accounts = with_room(view.accounts)
    total = used.sum(axis=1) > accounts.cap_total
    if accounts.cap_cost is not None and accounts.price is not None:
        total |= used @ accounts.price > accounts.cap_cost * (1 + EPSILON)
    return used > accounts.cap, total


def _within_limits(plan: Decision, view: Snapshot, tree: Tree, starts: Bools) -> None:
    """Raises InvalidPlan if an account gets additional GPUs under the plan and then exceeds a limit.

    `starts`: marks the picked gangs that get more GPUs of a generation than they hold. Gangs that already run are
    allowed to exceed a limit, because it may have been set later.
    """
    generation, size = np.zeros(len(view.jobs), dtype=np.int64), np.zeros(len(view.jobs), dtype=np.int64)
    generation[plan.run], size[plan.run] = plan.generation, plan.gpus(view.jobs)
    each, total = _beyond(view, _used(view, tree, plan.run, generation, size))
    new = _used(view, tree, plan.run[starts], generation, size) > 0
    found: Bools = (each & new).any(axis=1) | (total & new.any(axis=1))
    if found.any():
        raise InvalidPlan(f"account {int(np.argmax(found))} gets more GPUs than its limits allow")
