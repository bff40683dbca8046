"""Chooses how many workers elastic gangs run with, between their least and their most.

A policy decides as if each elastic gang had its least size, so that nobody else gets less than beside that gang. GPUs
that are idle after the policy's plan then go to elastic gangs, one worker at a time to the account that has least of
them by tickets. This is the division into a base demand and a flexible demand of Lyra (EuroSys '23, section 5).

A gang changes its size by stopping and starting again. It gives up GPUs as soon as the plan needs them. It takes more,
or passes some on to other elastic gangs, only after it has run at its size for two quanta, and for as long as it takes
until the change has made up for the switch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from fairshare.entitlement import entitlements
from fairshare.model import NOWHERE, Bools, Decision, Ints, Snapshot
from fairshare.quotas import Quotas, limits_of
from fairshare.tree import Tree
from fairshare.validate import stays_put

# Quanta for which a gang keeps its size. The quantum is so long that a switch in each costs little of it.
STEADY_QUANTA = 2
MOST_TRIES = 4  # each try fixes the sizes of more gangs; after these, all gangs that can keep their size do


def at_least_size(view: Snapshot) -> Snapshot:
    """Returns the view with all elastic gangs at their least size: the view from which a policy decides.

    A running gang keeps its size where it must not be stopped yet: in rounds that stop nothing, within the minimum
    hold, and on closed nodes, where it could not start again. Of a larger gang, the workers on those nodes are left out
    where it has fewest.
    """
    jobs = view.jobs
    if jobs.least is None or not view.settings.may_preempt:
        return view
    larger = np.flatnonzero(
        (jobs.running_on != NOWHERE)
        & (jobs.workers > jobs.least)
        & (jobs.resident >= view.settings.min_hold)
        & ~jobs.on_any(view.cluster.closed)
    )
    if not len(larger):
        return view
    workers, keep = jobs.workers.copy(), np.ones(len(jobs.place_node), dtype=bool)
    for job in larger.tolist():
        begin, end = jobs.place_start[job], jobs.place_start[job + 1]
        keep[begin:end] = _fullest(jobs.place_node[begin:end], int(jobs.least[job]))
        workers[job] = jobs.least[job]
    start = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)[jobs.place_start]
    smaller = replace(jobs, workers=workers, place_start=start, place_node=jobs.place_node[keep])
    return replace(view, jobs=smaller)


def _fullest(nodes: Ints, number: int) -> list[bool]:
    """Returns which `number` workers of a gang stay if it shrinks: those on the nodes where it has most workers.

    `nodes`: the node of each worker, by rank.
    """
    on = Counter(nodes.tolist())
    order = sorted(range(len(nodes)), key=lambda rank: (-on[int(nodes[rank])], int(nodes[rank]), rank))
    stay = set(order[:number])
    return [rank in stay for rank in range(len(nodes))]


def with_sizes(plan: Decision, base: Snapshot, view: Snapshot) -> Decision:
    """Returns the plan in which elastic gangs have as many workers as idle GPUs and their limits allow.

    `plan` is a policy's plan for `base`, which is `at_least_size(view)`. All other gangs are as in `plan`.
    """
    jobs = view.jobs
    if jobs.most is None:
        return plan
    # Of a gang that runs with more workers than its owner accepts by now, the present size is an upper bound, too.
    bound = np.maximum(jobs.most, jobs.workers)[plan.run]
    elastic = np.flatnonzero(np.diff(plan.place_start) < bound)
    return _Growth(plan, base, view, elastic, jobs.most).plan() if len(elastic) else plan


class _Growth:
    """Divides the GPUs that a plan leaves idle among its elastic gangs."""

    def __init__(self, plan: Decision, base: Snapshot, view: Snapshot, elastic: Ints, most: Ints) -> None:
        """`elastic`: the positions in the plan of gangs that may get more workers. `most` (J,): how many at most."""
        self._plan, self._base, self._view, self._most = plan, base, view, most
        jobs, cluster = view.jobs, view.cluster
        size = np.diff(plan.place_start)
        self._picked = {int(plan.run[p]): p for p in elastic.tolist()}
        picked = np.repeat(plan.run, size)
        used = np.bincount(plan.place_node, jobs.gpus[picked], len(cluster.capacity)).astype(np.int64)
        self._idle = cluster.capacity - used
        self._tree = Tree.of(view.accounts.parent)
        entitled = entitlements(view)
        self._limits = limits_of(view.accounts, self._tree, entitled, view.settings).most
        self._weight = np.maximum(entitled.sum(axis=1), 1e-9)
        self._pinned = jobs.on_any(cluster.closed)  # gangs that could not start again on all of their nodes
        self._settled = self._that_can_stay()

    def plan(self) -> Decision:
        """Returns the plan with the chosen sizes."""
        held = {job for job in self._settled if not self._may_change(job)}
        for number in range(MOST_TRIES + 1):
            if number == MOST_TRIES:
                held = set(self._settled)
            nodes = self._deal(held)
            refused = {job for job in self._settled.keys() - held if not self._pays(job, len(nodes[job]))}
            if not refused:
                break
            held |= refused
        return self._written(nodes)

    # --- gangs that can keep their size ------------------------------------------------------------

    def _that_can_stay(self) -> dict[int, Ints]:
        """Returns the running gangs that can keep their size on their nodes, with the nodes of all their workers."""
        jobs, idle = self._view.jobs, self._idle.copy()
        quotas = self._quotas()
        starts = self._quotas(~stays_put(self._plan, self._base.jobs))
        found: dict[int, Ints] = {}
        for job in self._picked:
            if jobs.running_on[job] == NOWHERE or not self._stays(job):
                continue
            here = jobs.place_node[jobs.place_start[job] : jobs.place_start[job + 1]]
            gpus, extra = int(jobs.gpus[job]), Counter(here.tolist())
            extra.subtract(self._nodes(job))
            more, kind = gpus * sum(extra.values()), int(jobs.running_on[job])
            if not all(idle[node] >= count * gpus for node, count in extra.items()):
                continue
            # A limit that was set or reached since then makes a gang smaller when its quantum is over, or when the plan
            # gives what the limit leaves to a gang that starts.
            account = int(jobs.account[job])
            is_allowed = len(here) <= self._most[job] and (not more or quotas.allow(account, kind, more))
            waits = not self._view.settings.is_quantum and quotas.allow_beside(starts, account, kind, more)
            if is_allowed or waits or self._pinned[job]:
                quotas.use(account, kind, more)
                for node, count in extra.items():
                    idle[node] -= count * gpus
                found[job] = here
        return found

    def _stays(self, job: int) -> bool:
        """Returns whether the plan leaves the workers of the base view where they run."""
        base, p = self._base.jobs, self._picked[job]
        here = base.place_node[base.place_start[job] : base.place_start[job + 1]]
        same = int(self._plan.generation[p]) == int(base.running_on[job])
        return same and sorted(self._nodes(job)) == sorted(here.tolist())

    def _may_change(self, job: int) -> bool:
        """Returns whether a running gang may be stopped for another size, if it pays."""
        settings, resident = self._view.settings, float(self._view.jobs.resident[job])
        if self._pinned[job] or not settings.is_quantum:
            return False
        return resident >= max(STEADY_QUANTA * settings.quantum, settings.min_hold)

    def _pays(self, job: int, workers: int) -> bool:
        """Returns whether a running gang has had its size for longer than it takes until a switch has paid off.

        How long the gang still runs is unknown. The rule of the rent or buy problem loses at most half.
        """
        before, resident = len(self._settled[job]), float(self._view.jobs.resident[job])
        if workers == before:
            return False  # it keeps its very nodes
        return resident * abs(workers - before) >= self._view.settings.switch_cost * max(workers, before)

    # --- division ----------------------------------------------------------------------------------

    def _deal(self, held: set[int]) -> dict[int, list[int]]:
        """Returns the nodes of the workers of each elastic gang. Gangs in `held` keep their size and their nodes."""
        jobs, plan, idle, quotas = self._view.jobs, self._plan, self._idle.copy(), self._quotas()
        nodes = {job: self._nodes(job) for job in self._picked}
        extra: Counter[int] = Counter()  # GPUs beyond least sizes, by account
        for job in sorted(held):
            gpus, more = int(jobs.gpus[job]), Counter(self._settled[job].tolist())
            more.subtract(nodes[job])
            for node, count in more.items():
                idle[node] -= count * gpus
            total = gpus * sum(more.values())
            quotas.use(int(jobs.account[job]), int(jobs.running_on[job]), total)
            extra[int(jobs.account[job])] += total
            nodes[job] = self._settled[job].tolist()
        if self._view.cluster.closed is not None:
            idle[self._view.cluster.closed] = 0
        order = [
            self._rank(job, extra)
            for job in self._picked
            if job not in held and len(nodes[job]) < self._most[job]
        ]
        heapify(order)
        while order:
            rank = heappop(order)
            job = rank[-1]
            if (now := self._rank(job, extra)) != rank:  # another gang of the account got a worker
                heappush(order, now)
                continue
            account, gpus = int(jobs.account[job]), int(jobs.gpus[job])
            kind = int(plan.generation[self._picked[job]])
            node = self._room(nodes[job], kind, gpus, idle)
            if node is None or not quotas.allow(account, kind, gpus):
                continue
            nodes[job].append(node)
            idle[node] -= gpus
            quotas.use(account, kind, gpus)
            extra[account] += gpus
            if len(nodes[job]) < self._most[job]:
                heappush(order, self._rank(job, extra))
        return nodes

    def _rank(self, job: int, extra: Counter[int]) -> tuple[bool, float, int, int]:
        jobs = self._view.jobs
        account = int(jobs.account[job])
        last = jobs.preemptible is not None and bool(jobs.preemptible[job])
        return last, extra[account] / float(self._weight[account]), -int(jobs.priority[job]), job

    def _room(self, own: list[int], kind: int, gpus: int, idle: Ints) -> int | None:
        """Returns the node for one more worker: one of the gang's own, or else the one that it fills best."""
        for node in own:
            if idle[node] >= gpus:
                return node
        fit = np.flatnonzero((idle >= gpus) & (self._view.cluster.node_generation == kind))
        return int(fit[np.argmin(idle[fit])]) if len(fit) else None

    def _quotas(self, some: Bools | None = None) -> Quotas:
        """Returns what limits leave beside the gangs of the policy's plan, or beside those marked in `some` (J,)."""
        jobs, quotas = self._base.jobs, Quotas(self._tree, self._limits)
        for job, kind in zip(self._plan.run.tolist(), self._plan.generation.tolist(), strict=True):
            if some is not None and not some[job]:
                continue
            if quotas.limits_any(account := int(jobs.account[job])):
                quotas.use(account, kind, int(jobs.workers[job] * jobs.gpus[job]))
        return quotas

    # --- plan --------------------------------------------------------------------------------------

    def _nodes(self, job: int) -> list[int]:
        p, plan = self._picked[job], self._plan
        found: list[int] = plan.place_node[plan.place_start[p] : plan.place_start[p + 1]].tolist()
        return found

    def _written(self, nodes: dict[int, list[int]]) -> Decision:
        plan, size = self._plan, np.diff(self._plan.place_start)
        parts = np.split(plan.place_node, plan.place_start[1:-1])
        for job, places in nodes.items():
            p = self._picked[job]
            size[p] = len(places)
            kept = job in self._settled and places == self._settled[job].tolist()
            parts[p] = np.array(places if kept else _together(places), dtype=np.int64)
        start = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        return replace(plan, place_start=start, place_node=np.concatenate(parts))


def _together(nodes: list[int]) -> list[int]:
    """Returns the nodes of a gang's workers such that workers of one node have consecutive ranks."""
    first = {node: at for at, node in reversed(list(enumerate(nodes)))}
    return sorted(nodes, key=lambda node: first[node])
