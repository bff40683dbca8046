"""Picking gangs, one after another, until nothing more fits."""

from __future__ import annotations

import heapq

import numpy as np

from fairshare.entitlement import capacity_of, ticket_share
from fairshare.model import NOWHERE, Bools, Ints, Jobs, Snapshot
from fairshare.placement import Packing
from fairshare.policies.gandiva_fair_1.draw import Standing, Stride, idle_draw_of
from fairshare.policies.gandiva_fair_1.queues import Group, Queue, queues_of, suspended_on
from fairshare.quotas import Limits, Quotas
from fairshare.tree import Tree

# Turns with a claim come before all that only fill what is left.
CLAIM, LEFTOVER = 0, 1

# stage, number, -GPUs, account, generation: the order in which turns are taken.
Turn = tuple[int, float, int, int, int]


class Selection:
    """The gangs picked so far, and where they go."""

    def __init__(  # noqa: PLR0917 - what a decision has worked out before, in that order
        self, snapshot: Snapshot, tree: Tree, able: Bools, limits: Limits, order: Ints, draw: Stride
    ) -> None:
        """`able` (J, K) says where each job may run, `order` (J,) how much its owner wants it."""
        self._jobs, self._draw = snapshot.jobs, draw
        self._order = order
        self._settings = snapshot.settings
        self._tree, self._tickets, self._able = tree, snapshot.accounts.tickets, able
        self.quotas = Quotas(tree, limits.most)
        # Who takes no part in the sharing is bound by what limits leave alone, and counts for nothing else.
        self.room = Quotas(tree, limits.room) if snapshot.jobs.preemptible is not None else None
        # Who shares only up to a limit is counted against that as well.
        self.claims = Quotas(tree, limits.claims) if limits.claims else None
        self._preemptible = False
        self.preemptible: list[int] = []  # who was picked only because nobody who takes part wants the GPUs
        # Whether there may be gangs that only get what nobody else wants.
        self.leaves_idle = self.claims is not None or snapshot.jobs.preemptible is not None
        holds = _holders(snapshot.jobs, able, self._settings.may_preempt)
        self.packings = [
            Packing(snapshot.cluster, k, snapshot.jobs, holds)
            for k in range(len(snapshot.cluster.generations))
        ]
        self.generation = np.full(len(snapshot.jobs), NOWHERE, dtype=np.int64)  # of picked jobs
        self._taken = bytearray(len(snapshot.jobs))
        # What an account would run next stays the same until one of its gangs is picked or dropped.
        self._changes = [0] * len(snapshot.accounts.parent)
        self._best: dict[tuple[int, int, int], tuple[int, Group | None]] = {}
        self._keep(holds, snapshot.cluster.closed)
        self._asleep = suspended_on(snapshot.jobs, snapshot.cluster.node_generation)
        sharing = snapshot.jobs.sharing(able)
        self._queues = queues_of(snapshot.jobs, sharing & ~self.picked[:, None], order, self._asleep)
        self._last_running = _last_running(snapshot.jobs, able.shape[1], order)
        self._room_for_all: list[list[bool]] = _room_for_all(snapshot, sharing).tolist()
        # While turns are taken: the heap of turns, who is left for them, and shapes that found no room.
        self._turns: list[Turn] = []
        self._candidates: dict[tuple[int, int], Queue] = {}
        self._failed: list[set[tuple[int, int]]] = []

    @property
    def picked(self) -> Bools:
        """(J,)"""
        picked: Bools = self.generation != NOWHERE
        return picked

    def run(self) -> None:
        """Pick by turns, let gangs go on where they are, and fill what that may have opened."""
        self._fill(may_move=True)
        for packing in self.packings:
            packing.settle_down()
        if self._is_room():
            self._fill(may_move=False)

    def fill_idle(self, seed: int) -> None:
        """After `run`: what is still free nobody wants who takes part, or can use; others get it by lot."""
        if not self._is_room():
            return
        self._preemptible = True
        able = self._able & ~self.picked[:, None]
        self._queues = queues_of(self._jobs, able, self._order, self._asleep)
        wants = np.zeros((len(self._tickets), able.shape[1]))
        np.add.at(wants, self._jobs.account, able)
        parts = ticket_share(self._tree, self._tickets, self._tree.sums(wants) > 0, np.ones(able.shape[1]))
        self._draw = idle_draw_of(parts, self._settings, seed)
        self._go_on()
        self._fill(may_move=False)

    def _go_on(self) -> None:
        """Gangs that were not picked stay where they are: a switch would only waste what is free."""
        jobs = self._jobs
        there = np.flatnonzero((jobs.running_on != NOWHERE) & ~self.picked)
        for job in sorted(there.tolist(), key=lambda job: self._order[job]):
            account, k = int(jobs.account[job]), int(jobs.running_on[job])
            size = int(jobs.workers[job] * jobs.gpus[job])
            if self._able[job, k] and self._allow(job, account, k, size) and self.packings[k].stay(job):
                self._pick(job, account, k, size)

    def _is_room(self) -> bool:
        """Whether anybody is left who could be given what is left."""
        return any(packing.free_gpus for packing in self.packings) and 0 in self._taken

    def _keep(self, holds: Bools, closed: Bools | None) -> None:
        """Gangs that no one may stop now: all, or those that got their GPUs only lately or on a closed node."""
        jobs, settings = self._jobs, self._settings
        if settings.may_preempt:
            lately = jobs.resident < settings.min_hold
            if jobs.preemptible is not None:
                lately &= ~jobs.preemptible
            holds = holds & (lately | jobs.on_any(closed))
        for job in sorted(np.flatnonzero(holds).tolist(), key=lambda job: self._order[job]):
            account, k = int(jobs.account[job]), int(jobs.running_on[job])
            size = int(jobs.workers[job] * jobs.gpus[job])
            in_quota = not settings.may_preempt or self._allow(job, account, k, size)
            if in_quota and self.packings[k].stay(job):
                self._pick(job, account, k, size)
        if closed is not None:
            for packing in self.packings:
                packing.close(closed)

    def _pick(self, job: int, account: int, generation: int, size: int) -> None:
        self.generation[job] = generation
        self._taken[job] = 1
        if self._preemptible:
            self.preemptible.append(job)
        self._changes[account] += 1
        if self.room is not None:
            self.room.use(account, generation, size)
        if self._takes_part(job):
            self.quotas.use(account, generation, size)
            if self.claims is not None:
                self.claims.use(account, generation, size)
            self._draw.charge(account, generation, size)
        present = int(self._jobs.running_on[job])
        if present not in {NOWHERE, generation}:
            self.packings[present].leave(job)

    def _takes_part(self, job: int) -> bool:
        return self._jobs.preemptible is None or not self._jobs.preemptible[job]

    def _allow(self, job: int, account: int, generation: int, size: int) -> bool:
        """Whether limits let the job's account have so many more GPUs, in the sharing or when all that is over."""
        if self.room is not None and not self.room.allow(account, generation, size):
            return False
        if not self._takes_part(job):
            return True
        if not self.quotas.allow(account, generation, size):
            return False
        return self._preemptible or self.claims is None or self.claims.allow(account, generation, size)

    def _fill(self, *, may_move: bool) -> None:
        """Take turns until none is left. A shape that could not be placed is not tried again."""
        self._candidates = {key: Queue(list(queue.groups)) for key, queue in self._queues.items()}
        self._failed = [set() for _ in self.packings]
        self._best = {}
        self._turns = []
        for account, k in self._candidates:
            stage = CLAIM if self._draw.has_claim(account, k) else LEFTOVER
            self._enter(stage, account, k, since=0.0)
        while self._turns:
            stage, number, negative_size, account, k = heapq.heappop(self._turns)
            if not self.packings[k].free_gpus:
                continue
            found = self._next(stage, account, k)
            # Another turn of the account may have taken the gang that this number was for.
            if found is not None and found.size == -negative_size:
                self._try(found, account, k, may_move=may_move)
            self._enter(stage, account, k, since=number)

    def _enter(self, stage: int, account: int, k: int, *, since: float) -> None:
        """Give the account's next gang a place in the order of turns, if there is one."""
        group = self._next(stage, account, k)
        if group is None and stage == CLAIM:
            # What is kept for the generation where it runs now may go anywhere in the end.
            stage = LEFTOVER
            group = self._next(stage, account, k)
        if group is not None:
            number = self._draw.number(account, k, group.size, self._standing(group, account, k), since)
            heapq.heappush(self._turns, (stage, number, -group.size, account, k))

    def _next(self, stage: int, account: int, k: int) -> Group | None:
        """The group whose first job the account would run next on the generation.

        Of the same priority, gangs go first that are not suspended on another generation, from where they
        would have to begin anew.
        """
        known = self._best.get((stage, account, k))
        if known is not None and known[0] == self._changes[account]:
            return known[1]
        queue = self._candidates[account, k]
        queue.drop(self._taken)
        best, lowest = None, None
        for group in queue.groups:
            if stage == CLAIM and self._kept_elsewhere(group, account, k):
                continue
            turn = group.turns[group.head]
            if group.suspended_on not in {NOWHERE, k}:
                turn += len(self._jobs)  # after all others of its priority
            if lowest is None or turn < lowest:
                best, lowest = group, turn
        self._best[stage, account, k] = (self._changes[account], best)
        return best

    def _kept_elsewhere(self, group: Group, account: int, k: int) -> bool:
        """Whether the group's jobs run on another generation and are better left there.

        Where all find room there is no turn to give up; but who has no share there goes where it has one.
        """
        present = group.running_on
        if present in {NOWHERE, k}:
            return False
        if self._draw.has_claim(account, present) and self._room_for_all[account][present]:
            return True
        return not self._draw.prefers(account, k, present, group.size)

    def _standing(self, group: Group, account: int, k: int) -> Standing:
        if group.running_on == k:
            return Standing.RUNNING
        if group.running_on == NOWHERE and group.rank < self._last_running[account, k]:
            return Standing.OVERTAKEN
        return Standing.WAITING

    def _try(self, group: Group, account: int, k: int, *, may_move: bool) -> None:
        """Pick the first of the group, or drop all of it from the candidates for this generation."""
        shape = (group.workers, group.gpus)
        if self._allow(group.first, account, k, group.size) and shape not in self._failed[k]:
            if self.packings[k].place(group.first, may_move=may_move):
                self._pick(group.first, account, k, group.size)
                return
            self._failed[k].add(shape)
        self._candidates[account, k].groups.remove(group)
        self._changes[account] += 1


def _holders(jobs: Jobs, able: Bools, may_preempt: bool) -> Bools:
    """(J,) the gangs that have GPUs and may go on with them. Where nobody may be stopped, all."""
    holds: Bools = jobs.running_on != NOWHERE
    if may_preempt and len(jobs) and able.shape[1]:
        holds = holds & able[np.arange(len(jobs)), jobs.running_on]
    return holds


def _room_for_all(snapshot: Snapshot, able: Bools) -> Bools:
    """(T, K) whether all other accounts' jobs find room on a generation beside what an account runs there.

    Of those that take part, which `able` (J, K) tells of; what others hold may be taken from them.
    """
    jobs = snapshot.jobs
    size = (jobs.workers * jobs.gpus).astype(np.float64)
    wanted, held = np.zeros_like(snapshot.accounts.owed), np.zeros_like(snapshot.accounts.owed)
    np.add.at(wanted, jobs.account, able * size[:, None])
    running = _running(jobs)
    np.add.at(held, (jobs.account[running], jobs.running_on[running]), size[running])
    room: Bools = wanted.sum(axis=0) - wanted + held <= capacity_of(snapshot.cluster)
    return room


def _running(jobs: Jobs) -> Ints:
    """Jobs that hold GPUs and take part in the sharing."""
    runs = jobs.running_on != NOWHERE
    return np.flatnonzero(runs if jobs.preemptible is None else runs & ~jobs.preemptible)


def _last_running(jobs: Jobs, generations: int, order: Ints) -> Ints:
    """(T, K) the rank of the least wanted job that each account runs on each generation, or -1."""
    accounts = int(jobs.account.max(initial=-1)) + 1
    last = np.full((accounts, generations), -1, dtype=np.int64)
    running = _running(jobs)
    np.maximum.at(last, (jobs.account[running], jobs.running_on[running]), order[running])
    return last
