"""Keeps advance reservations: sets their GPUs apart before a policy decides, whatever the policy is.

While a window is open, gangs of its account get its GPUs first, in the order of their priority. A gang runs either
wholly on reserved GPUs or wholly by the policy's decision. What the gangs leave is held back, or left to the policy if
the reservation lends: then a gang that borrows it loses it as soon as a gang of the account fits.

Shortly before a window begins its GPUs are held free, so that gangs that run there can stop in time. Services and
sessions, which do not take turns, start on GPUs of a coming window only if a time limit ends them before, and never on
lent ones.

The policy sees a cluster that is smaller by what is set apart, without the gangs that run there. What it decides is
joined with them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from fairshare.model import NOWHERE, Advance, Bools, Decision, Floats, Ints, Jobs, Reason, Snapshot
from fairshare.placement import fit
from fairshare.quotas import with_room
from fairshare.reasons import open_to_all
from fairshare.tree import Tree
from fairshare.validate import stays_put, within_capacity

# Reasons of the policy that may in truth be due to GPUs that are held back.
_MAY_BE_RESERVED = (Reason.SHARE_IN_USE, Reason.NODES_AWAY, Reason.FRAGMENTED, Reason.OWN_JOBS_AHEAD)


@dataclass(frozen=True, slots=True)
class Apart:
    """A view whose reserved GPUs are set apart, with the gangs that run on them.

    - `view`: the whole view. `rest`: what the policy sees.
    - `advance`: the reservations, with no more GPUs than the nodes have.
    - `places`: the node of each worker, by job that runs on reserved GPUs.
    - `idle` (N,): GPUs that are held back though no gang uses them.
    - `below` (R, T): the accounts whose jobs each reservation is for.
    """

    view: Snapshot
    rest: Snapshot
    advance: Advance
    places: dict[int, Ints]
    idle: Ints
    below: Bools

    @classmethod
    def of(cls, view: Snapshot) -> Self | None:
        """Returns the view with its reserved GPUs set apart; None without advance reservations."""
        if view.advance is None:
            return None
        tree, advance = Tree.of(view.accounts.parent), _clipped(view.advance, view)
        below = np.array([_below(tree, int(account)) for account in advance.account], dtype=bool)
        below = below.reshape(len(advance.node), len(tree.parent))
        is_open, is_held = advance.opens <= view.now, advance.held <= view.now
        picker, idle = _Picker(view, tree), np.zeros(len(view.cluster.capacity), dtype=np.int64)
        for account in dict.fromkeys(advance.account[is_held | is_open].tolist()):
            own = advance.account == account
            lent = _on_nodes(advance, own & is_open & advance.lends, view)
            kept = _on_nodes(advance, own & is_open & ~advance.lends, view)
            coming = _on_nodes(advance, own & is_held & ~is_open & ~advance.lends, view)
            used = np.zeros_like(idle)
            if account != NOWHERE:
                mine = below[int(np.argmax(own))]
                used = picker.pick(mine, waiting=kept + lent, running=kept + lent + coming)
            idle += np.maximum(kept + coming - used, 0)
        return cls(view, _rest(view, picker.places, idle), advance, picker.places, idle, below)

    def decided(self, ask: Callable[[Snapshot], Decision]) -> Decision:
        """Returns the decision for the whole view. `ask` returns the policy's decision for the rest.

        Raises InvalidPlan if a node would give out more GPUs than it has.
        """
        plan, elsewhere = self._without_intruders(ask(self.rest))
        apart = self
        if elsewhere:  # the GPUs that these gangs must not have are for others
            places = self.places | {job: at for job, at in elsewhere.items() if at is not None}
            rest = _rest(self.view, places, self.idle)
            blocked = rest.jobs.blocked.copy()
            blocked[[job for job, at in elsewhere.items() if at is None]] = Reason.RESERVED
            apart = replace(self, places=places, rest=replace(rest, jobs=replace(rest.jobs, blocked=blocked)))
            plan, _ = apart._without_intruders(ask(apart.rest))
        joined = apart._joined(plan)
        within_capacity(joined, self.view)
        return joined

    def _joined(self, plan: Decision) -> Decision:
        own = np.array(sorted(self.places), dtype=np.int64)
        nodes = [self.places[job] for job in own.tolist()]
        sizes = np.concatenate([np.diff(plan.place_start), [len(one) for one in nodes]])
        on = np.array([self.view.cluster.node_generation[one[0]] for one in nodes], dtype=np.int64)
        reason = plan.reason.copy()
        reason[own] = Reason.NONE
        reason[self._kept_waiting(plan)] = Reason.RESERVED
        return replace(
            plan,
            run=np.concatenate([plan.run, own]),
            generation=np.concatenate([plan.generation, on]),
            place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            place_node=np.concatenate([plan.place_node, *nodes]),
            reason=reason,
        )

    def _kept_waiting(self, plan: Decision) -> Ints:
        """Returns the waiting jobs that would fit if no GPUs were reserved."""
        jobs, cluster = self.view.jobs, self.view.cluster
        waits = np.flatnonzero(np.isin(plan.reason, _MAY_BE_RESERVED) & (jobs.blocked == 0))
        waits = waits[~np.isin(waits, list(self.places))]
        apart = cluster.capacity - self.rest.cluster.capacity
        if not len(waits) or not apart.any():
            return np.zeros(0, dtype=np.int64)
        free = _free(plan, self.rest) + apart
        # Where the rest of the cluster is too small for a gang, it does not wait for a turn of others.
        away = plan.reason[waits] == Reason.NODES_AWAY
        # One number for each shape, because unique rows take several times as long.
        shapes = (jobs.workers[waits] << 32) | (jobs.gpus[waits] << 1) | away
        found, which = np.unique(shapes, return_inverse=True)
        fits = np.zeros((len(found), len(cluster.generations)), dtype=bool)
        for kind in np.unique(cluster.node_generation[apart > 0]).tolist():
            here = cluster.node_generation == kind
            fits[:, kind] = [
                fit((cluster.capacity if shape & 1 else free)[here], shape >> 32, (shape >> 1) & 0x7FFFFFFF)
                is not None
                for shape in found.tolist()
            ]
        held: Ints = waits[(fits[which] & jobs.accepts[waits]).any(axis=1)]
        return held

    def _without_intruders(self, plan: Decision) -> tuple[Decision, dict[int, Ints | None]]:
        """Returns the plan without services and sessions that begin on GPUs which a window needs before they end.

        Also returns these, with the nodes of their workers where they may begin instead; None if there are none.
        """
        jobs, cluster = self.view.jobs, self.rest.cluster
        if jobs.keeps is None:
            return plan, {}
        stays = stays_put(plan, jobs)[plan.run]
        begins = jobs.keeps[plan.run] & ~stays
        if not begins.any():
            return plan, {}
        bounds = plan.place_start.tolist()
        places = [plan.place_node[start:end] for start, end in pairwise(bounds)]
        running, keeping = np.zeros_like(cluster.capacity), np.zeros_like(cluster.capacity)
        for i in np.flatnonzero(stays).tolist():
            _take(running, places[i], int(jobs.gpus[plan.run[i]]))
            if jobs.keeps[plan.run[i]]:
                _take(keeping, places[i], int(jobs.gpus[plan.run[i]]))
        elsewhere: dict[int, Ints | None] = {}
        for i in np.flatnonzero(begins).tolist():
            job = int(plan.run[i])
            gpus = int(jobs.gpus[job])
            room = cluster.capacity - self._needed_before(job) - keeping
            at: Ints | None = places[i]
            if not _fits(room, places[i], gpus):
                here = np.flatnonzero(cluster.node_generation == plan.generation[i])
                spot = fit(np.minimum(room, cluster.capacity - running)[here], len(places[i]), gpus)
                at = elsewhere[job] = None if spot is None else here[spot]
            if at is not None:
                _take(keeping, at, gpus)
                _take(running, at, gpus)
        return _without(plan, list(elsewhere)), elsewhere

    def _needed_before(self, job: int) -> Ints:
        """Returns the GPUs of each node, among those that the policy gives out, that windows of others need before the
        job would end, as an array (N,)."""
        jobs, advance = self.view.jobs, self.advance
        until = np.inf if jobs.until is None else jobs.until[job]
        is_open, is_held = advance.opens <= self.view.now, advance.held <= self.view.now
        given = (is_open & advance.lends) | (~is_open & (~is_held | advance.lends))
        concerns = given & (advance.opens < until) & ~self.below[:, jobs.account[job]]
        return _on_nodes(advance, concerns, self.view)


class _Picker:
    """Picks gangs for reserved GPUs, within the limits of their accounts."""

    def __init__(self, view: Snapshot, tree: Tree) -> None:
        self.places: dict[int, Ints] = {}
        self.used = np.zeros_like(
            view.accounts.cap
        )  # (T, K) GPUs of the picked gangs, with all accounts above
        self._view, self._tree, self._limits = view, tree, with_room(view.accounts)
        jobs = view.jobs
        # Gangs that run elsewhere may have to go on, so picked ones must fit beside them.
        self._held = np.zeros_like(view.accounts.cap)
        runs = np.flatnonzero(jobs.running_on != NOWHERE)
        np.add.at(self._held, (jobs.account[runs], jobs.running_on[runs]), (jobs.workers * jobs.gpus)[runs])
        self._held = tree.sums(self._held)

    def pick(self, accounts: Bools, *, waiting: Ints, running: Ints) -> Ints:
        """Picks gangs of the marked accounts, and returns the GPUs that they use, by node (N,).

        `running` (N,): GPUs on which gangs that run there may stay. `waiting` (N,): those on which others may begin.

        When a quantum is over, a gang of higher priority takes GPUs of running gangs of lower priority if it fits
        nowhere else. Services, sessions and gangs within their minimum hold keep theirs.
        """
        jobs, settings = self._view.jobs, self._view.settings
        able = accounts[jobs.account] & (jobs.blocked == 0)
        if jobs.preemptible is not None:
            able &= ~jobs.preemptible
        runs = jobs.running_on != NOWHERE
        goes_on = runs & (jobs.resident < settings.min_hold) if settings.is_quantum else runs.copy()
        if jobs.keeps is not None:
            goes_on |= runs & jobs.keeps
        order = np.flatnonzero(able)
        order = order[np.lexsort((~runs[order], -jobs.priority[order], ~goes_on[order]))]
        held, used = np.zeros_like(running), np.zeros_like(running)
        for job in order[runs[order]].tolist():
            _take(held, self._nodes(job), int(jobs.gpus[job]))
        for job in order.tolist():
            if runs[job]:
                _take(held, self._nodes(job), -int(jobs.gpus[job]))
                self._keep(job, running, used)
            elif job not in self.places:
                self._begin(job, waiting, used, held)
        return used

    def _keep(self, job: int, running: Ints, used: Ints) -> None:
        """Picks a running gang on its nodes, if these are among the GPUs `running` and nobody else got them."""
        at = self._nodes(job)
        if job in self.places or not _fits(running - used, at, int(self._view.jobs.gpus[job])):
            return
        # A limit that was set since it started stops a gang at the end of its quantum, as elsewhere.
        may_stay = not self._view.settings.is_quantum
        if may_stay or self._is_allowed(job, int(self._view.jobs.running_on[job]), beside=self.used):
            self._give(job, at, used, is_new=False)

    def _begin(self, job: int, waiting: Ints, used: Ints, held: Ints) -> None:
        """Picks a waiting gang where it fits on GPUs that are not in `held`, and otherwise anywhere."""
        jobs, kinds = self._view.jobs, self._view.cluster.node_generation
        workers, gpus = int(jobs.workers[job]), int(jobs.gpus[job])
        if int(waiting.sum()) - int(used.sum()) < workers * gpus:
            return
        for free in (np.maximum(waiting - used - held, 0), np.maximum(waiting - used, 0)):
            for kind in _preferred(jobs, job):
                here = np.flatnonzero(kinds == kind)
                spot = fit(free[here], workers, gpus)
                if spot is not None and self._is_allowed(job, kind, beside=self._held):
                    self._give(job, here[spot], used, is_new=True)
                    return

    def _nodes(self, job: int) -> Ints:
        jobs = self._view.jobs
        return jobs.place_node[jobs.place_start[job] : jobs.place_start[job + 1]]

    def _is_allowed(self, job: int, kind: int, *, beside: Floats) -> bool:
        """Returns whether limits allow the gang in addition to the GPUs `beside` (T, K)."""
        limits, size = self._limits, int(self._view.jobs.workers[job] * self._view.jobs.gpus[job])
        for account in self._tree.path(int(self._view.jobs.account[job])):
            held = beside[account]
            if held[kind] + size > limits.cap[account, kind] or held.sum() + size > limits.cap_total[account]:
                return False
            if limits.cap_cost is not None and limits.price is not None:
                cost = float(held @ limits.price) + size * float(limits.price[kind])
                if cost > limits.cap_cost[account]:
                    return False
        return True

    def _give(self, job: int, at: Ints, used: Ints, *, is_new: bool) -> None:
        jobs = self._view.jobs
        self.places[job] = at
        _take(used, at, int(jobs.gpus[job]))
        kind, size = self._view.cluster.node_generation[at[0]], jobs.workers[job] * jobs.gpus[job]
        path = self._tree.path(int(jobs.account[job]))
        self.used[path, kind] += size
        if is_new:
            self._held[path, kind] += size


def _rest(view: Snapshot, places: dict[int, Ints], idle: Ints) -> Snapshot:
    """Returns the view without the gangs in `places`, the GPUs that they use, and those that are held back."""
    jobs, own = view.jobs, np.array(sorted(places), dtype=np.int64)
    capacity, used = view.cluster.capacity - idle, np.zeros(view.accounts.cap.shape)
    for job, at in places.items():
        _take(capacity, at, -int(jobs.gpus[job]))
        used[jobs.account[job], view.cluster.node_generation[at[0]]] += jobs.workers[job] * jobs.gpus[job]
    running_on, blocked = jobs.running_on.copy(), jobs.blocked.copy()
    running_on[own], blocked[own] = NOWHERE, Reason.GPUS_DRAINING
    accounts, used = view.accounts, Tree.of(view.accounts.parent).sums(used)
    total = used.sum(axis=1)
    cost = np.zeros(len(total)) if accounts.price is None else used @ accounts.price

    def left(limit: Floats | None, by: Floats) -> Floats | None:
        return None if limit is None else np.maximum(limit - by, 0.0)

    return replace(
        view,
        cluster=replace(view.cluster, capacity=np.maximum(capacity, 0)),
        jobs=replace(jobs, running_on=running_on, blocked=blocked),
        accounts=replace(
            accounts,
            cap=np.maximum(accounts.cap - used, 0.0),
            cap_total=np.maximum(accounts.cap_total - total, 0.0),
            room=left(accounts.room, used),
            room_total=left(accounts.room_total, total),
            claim=left(accounts.claim, used),
            claim_total=left(accounts.claim_total, total),
            cap_cost=left(accounts.cap_cost, cost),
            room_cost=left(accounts.room_cost, cost),
            claim_cost=left(accounts.claim_cost, cost),
        ),
        advance=None,
    )


def _without(plan: Decision, gone: list[int]) -> Decision:
    """Returns the plan without some picked jobs, which wait for an advance reservation."""
    if not gone:
        return plan
    stays = ~np.isin(plan.run, gone)
    sizes = np.diff(plan.place_start)
    reason = plan.reason.copy()
    reason[gone] = Reason.RESERVED
    return replace(
        plan,
        run=plan.run[stays],
        generation=plan.generation[stays],
        place_start=np.concatenate([[0], np.cumsum(sizes[stays])]).astype(np.int64),
        place_node=plan.place_node[np.repeat(stays, sizes)],
        reason=reason,
        preemptible=None if plan.preemptible is None else np.setdiff1d(plan.preemptible, gone),
    )


def _clipped(advance: Advance, view: Snapshot) -> Advance:
    """Returns the reservations with no more GPUs than each node can give to any gang now; 0 after the window.

    Earlier windows go first.
    """
    left, gpus = open_to_all(view.cluster).copy(), np.zeros_like(advance.gpus)
    for row in np.argsort(advance.opens, kind="stable").tolist():
        if advance.closes[row] <= view.now:
            continue
        node = advance.node[row]
        gpus[row] = min(advance.gpus[row], left[node])
        if advance.held[row] <= view.now or advance.opens[row] <= view.now:
            left[node] -= gpus[row]
    return replace(advance, gpus=gpus)


def _below(tree: Tree, account: int) -> Bools:
    """Returns the account and all accounts below it, as a mask (T,)."""
    found = np.zeros(len(tree.parent), dtype=bool)
    if account != NOWHERE:
        found[account] = True
        for level in tree.levels[1:]:
            found[level] |= found[tree.parent[level]]
    return found


def _on_nodes(advance: Advance, rows: Bools, view: Snapshot) -> Ints:
    """Returns the GPUs that the marked rows reserve on each node, as an array (N,)."""
    found = np.bincount(advance.node[rows], advance.gpus[rows], len(view.cluster.capacity))
    return found.astype(np.int64)


def _preferred(jobs: Jobs, job: int) -> list[int]:
    """Returns the generations that the job accepts, the fastest first."""
    rate = np.nan_to_num(jobs.rate[job], nan=-1.0)
    found: list[int] = [k for k in np.argsort(-rate, kind="stable").tolist() if jobs.accepts[job, k]]
    return found


def _free(plan: Decision, view: Snapshot) -> Ints:
    """Returns the GPUs of each node that the plan gives to no gang, as an array (N,)."""
    gang = np.repeat(plan.run, np.diff(plan.place_start))
    used = np.bincount(plan.place_node, view.jobs.gpus[gang], len(view.cluster.capacity))
    return view.cluster.capacity - used.astype(np.int64)


def _fits(free: Ints, at: Ints, gpus: int) -> bool:
    nodes, workers = np.unique(at, return_counts=True)
    return bool((free[nodes] >= workers * gpus).all())


def _take(amounts: Ints, at: Ints, gpus: int) -> None:
    """Adds `gpus` to `amounts` for each worker at its node in `at`. A node may occur several times."""
    np.add.at(amounts, at, gpus)
