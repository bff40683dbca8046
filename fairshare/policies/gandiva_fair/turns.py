"""Whose gang is next: gang-aware stride or lottery scheduling, level by level of the ticket tree.

Every account offers the gang that it would run next, and at each account above the best offer goes on upwards.
In the first stage those go first whose gang keeps within the guaranteed time that the account has saved up and
earns this quantum (as in worst-case fair weighted fair queueing, Bennett and Zhang 1996, only who is eligible
takes part), in the second all others by what they are owed in all.

An account whose next gang is too large for what it has saved up so far goes on saving: its later gangs come
after all others' surplus, and only with what the large one leaves.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Accounts, Bools, Ints, Jobs, Settings
from fairshare.policies.gandiva_fair.balances import Balances, tier_one
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.tree import Tree

# Stages of a turn: within the guarantee, surplus, surplus that a larger gang is saving up for, no share at all.
CLAIM, SURPLUS, OVERTAKING, LEFTOVER = 1, 2, 3, 4
# Own gangs that an account passes over in search of one within its guarantee.
SCAN = 4
# Own gangs of the same priority among which one may go first that fills a hole.
WINDOW = 32

# stage, whether it waits (where what runs goes first), number, number by all that is owed, -GPUs, account
Turn = tuple[int, bool, float, float, int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """The jobs of every account in the order in which it wants them."""

    order: Ints  # (J,) the rank of each job among all
    listed: list[int]  # jobs by account and rank
    level_end: list[int]  # of each position in `listed`, where the jobs of this account and priority end
    begin: dict[int, int]  # of each account, its first position in `listed`
    end: dict[int, int]

    @classmethod
    def of(cls, jobs: Jobs, order: Ints, chosen: Bools, settings: Settings) -> Line:
        """The `chosen` (J,) jobs, by `order` (J,) as from wanted_order."""
        some = np.flatnonzero(chosen)
        running = (jobs.running_on != NOWHERE)[some]
        first = ~running if settings.reclaim else np.zeros(len(some), dtype=bool)
        some = some[np.lexsort((order[some], first, jobs.account[some]))]
        running = jobs.running_on[some] != NOWHERE
        kept = running & _keeps(jobs)[some]
        alike = [jobs.account[some], jobs.priority[some], kept]
        if settings.reclaim:
            alike.append(running)
        new = np.ones(len(some) + 1, dtype=bool)
        new[1:-1] = np.any([key[1:] != key[:-1] for key in alike], axis=0)
        edges = np.flatnonzero(new)
        level_end = np.repeat(edges[1:], np.diff(edges)) if len(some) else edges[:0]
        accounts, begin = np.unique(jobs.account[some], return_index=True)
        end = np.append(begin[1:], len(some))[: len(begin)]
        owners = accounts.tolist()
        return cls(
            order,
            some.tolist(),
            level_end.tolist(),
            dict(zip(owners, begin.tolist(), strict=True)),
            dict(zip(owners, end.tolist(), strict=True)),
        )


def wanted_order(jobs: Jobs, accounts: Accounts, settings: Settings) -> Ints:
    """(J,) the rank of each job, as its owner wants it.

    First what runs and keeps its GPUs, then by priority, then as listed; the jobs of accounts that share
    evenly by the time that each has had for each of its GPUs, where what runs goes on for a quantum.
    """
    had = np.zeros(len(jobs))
    running = jobs.running_on != NOWHERE
    if accounts.evenly is not None and jobs.attained is not None:
        each = jobs.attained / np.maximum(jobs.workers * jobs.gpus, 1) - settings.quantum * running
        had = np.where(accounts.evenly[jobs.account], each, 0.0)
    rank = np.empty(len(jobs), dtype=np.int64)
    ordered = np.lexsort((np.arange(len(jobs)), had, -jobs.priority, ~(running & _keeps(jobs))))
    rank[ordered] = np.arange(len(jobs))
    return rank


def alike(*columns: Ints) -> Ints:
    """(J,) a number for each combination of values, none of them negative, that occurs in columns (J,)."""
    found, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if span * values >= 2**62:
            found = np.unique(found, return_inverse=True)[1]
            span = len(found) + 1
        found, span = found * values + column, span * values
    return np.unique(found, return_inverse=True)[1]


def _keeps(jobs: Jobs) -> Bools:
    return np.zeros(len(jobs), dtype=bool) if jobs.keeps is None else jobs.keeps


class Turns:
    """The offers of all accounts, and what each was given in this round."""

    def __init__(  # noqa: PLR0917 - what a decision has worked out before, in that order
        self,
        tree: Tree,
        jobs: Jobs,
        able: Bools,
        line: Line,
        shares: Shares,
        balances: Balances,
        settings: Settings,
        chance: np.random.Generator | None,
        strict: Sequence[bool],
    ) -> None:
        """`able` (J, K) says where jobs may run; `chance` draws lots, None is for stride scheduling.

        `strict` (T,) marks accounts of which no job may go before one that is saved up for, as limits count both.
        """
        self._strict = strict
        self._levels, self._line, self._chance = tree.levels, line, chance
        self._root = len(tree.parent)
        self._parent: list[int] = np.where(tree.parent == NOWHERE, self._root, tree.parent).tolist()
        self._quantum, self._patience = settings.quantum, settings.switch_cost
        self._running_first = settings.reclaim
        guaranteed = tier_one(shares)
        self._of_generation = guaranteed
        self._due: list[float] = guaranteed.sum(axis=1).tolist()
        self._share: list[float] = shares.share.sum(axis=1).tolist()
        self._saved: list[float] = balances.guaranteed.tolist()
        self._owed: list[float] = balances.total.tolist()
        self._account: list[int] = jobs.account.tolist()
        self.size: list[int] = (jobs.workers * jobs.gpus).tolist()
        self._runs: list[bool] = (jobs.running_on != NOWHERE).tolist()
        self.able = able
        # Where nobody runs and nothing is saved up there is nothing to keep, and all take part in the first draw.
        self._first_draw = chance is not None and not balances.guaranteed.any() and not any(self._runs)
        self._use = [0.0] * (self._root + 1)
        self._reserved = [0.0] * (self._root + 1)
        self._saving: dict[int, list[tuple[int, float]]] = {}  # gangs that are saved up for
        self._kept_for: dict[int, Bools] = {}  # (K,) of leaves, generations that these may use
        self._since: dict[tuple[int, int, int], float] = {}
        self.taken = bytearray(len(jobs))  # jobs that were picked
        choice = able @ (1 << np.arange(able.shape[1], dtype=np.int64))
        # Jobs of one kind fit in the same places.
        self.kind: list[int] = alike(choice, jobs.workers, jobs.gpus).tolist()
        self.hopeless = bytearray(max(self.kind, default=0) + 1)  # kinds for which there is no room
        self.only_claims = True
        self._begin()

    def used(self, account: int, gpus: int) -> None:
        """The account was given GPUs without a turn."""
        while account != self._root:
            self._use[account] += gpus
            account = self._parent[account]

    def _begin(self) -> None:
        self._heads = dict(self._line.begin)
        self._aside: dict[int, int] = {}
        self._late: dict[int, list[tuple[int, int, int]]] = {}
        self._closed: set[int] = set()
        self._heaps: list[list[Turn]] = []

    def open(self, *, only_claims: bool) -> None:
        """Collect the offers of all, `only_claims` those within the guarantee."""
        self.only_claims = only_claims
        self._begin()
        self._since = {}
        self._heaps = [[] for _ in range(self._root + 1)]
        for level in self._levels[::-1]:
            for account in level.tolist():
                if self._heaps[account]:
                    heapq.heapify(self._heaps[account])
                elif account not in self._heads:
                    continue
                turn = self._turn(account)
                if turn is not None:
                    self._heaps[self._parent[account]].append(turn)
        heapq.heapify(self._heaps[self._root])

    def next(self) -> int:
        """The job whose turn it is; NOWHERE when all had their turns."""
        return self._offered(self._root)

    def took(self, job: int) -> None:
        """The job whose turn it was, or one of the same account instead of it, was picked."""
        account = self._account[job]
        self.taken[job] = 1
        self.used(account, self.size[job])
        if job in self._saving:
            for x, amount in self._saving.pop(job):
                self._reserved[x] -= amount
            self._kept_for.pop(account, None)
        self._refresh(account, self._root)

    def passed(self, job: int, *, later: bool = False) -> None:
        """The job whose turn it was found no place; `later` it is tried once more after those of its priority."""
        account = self._account[job]
        position = self._heads.get(account, 0)
        self._skip(account, job)
        if later:
            late = self._late.setdefault(account, [])
            heapq.heappush(late, (self._line.level_end[position], position, job))
        self._refresh(account, self._root)

    def is_late(self, job: int) -> bool:
        late = self._late.get(self._account[job], [])
        return bool(late) and late[0][2] == job

    def following(self, job: int) -> list[int]:
        """The jobs after this one among which one may go first instead, within the same claim."""
        account = self._account[job]
        position = self._heads[account]
        line = self._line
        if self._runs[job] or position == line.end[account] or line.listed[position] != job:
            return []
        end = min(line.level_end[position], position + WINDOW)
        return [
            other
            for other in line.listed[position + 1 : end]
            if not self.taken[other] and (not self.only_claims or self._is_claim(account, other))
        ]

    def _is_claim(self, account: int, job: int) -> bool:
        while account != self._root:
            if self._stage(account, job) != CLAIM:
                return False
            account = self._parent[account]
        return True

    def _first(self, account: int) -> tuple[Turn, int]:
        """The turn of the leaf that is first below an account, and the job that the leaf would run next."""
        while True:
            turn = self._heaps[account][0]
            account = turn[5]
            if not self._heaps[account]:
                return turn, self._own(account)

    def _offered(self, account: int) -> int:
        """The job that an account would run next."""
        if account in self._heads:
            return self._own(account)
        while self._heaps[account]:
            turn, job = self._first(account)
            # Meanwhile there may turn out to be no room for the gang that was offered.
            if job != NOWHERE and self.size[job] == -turn[4]:
                return job
            self._refresh(turn[5], account)
        return NOWHERE

    def _own(self, leaf: int) -> int:
        head, end, listed = self._heads[leaf], self._line.end[leaf], self._line.listed
        taken, hopeless, kind = self.taken, self.hopeless, self.kind
        while head < end and (taken[listed[head]] or hopeless[kind[listed[head]]]):
            head += 1
        self._heads[leaf] = head
        late = self._late.get(leaf)
        while late and (taken[late[0][2]] or hopeless[kind[late[0][2]]]):
            heapq.heappop(late)
        if late and late[0][0] <= head:
            return late[0][2]
        return listed[head] if head < end else NOWHERE

    def _skip(self, leaf: int, job: int) -> None:
        if self.is_late(job):
            heapq.heappop(self._late[leaf])
        else:
            self._heads[leaf] += 1

    def _refresh(self, account: int, until: int) -> None:
        """Put a new offer in the place of the first one at each account from this one up to below `until`."""
        while account != until:
            heap = self._heaps[self._parent[account]]
            if heap[0][5] != account:
                raise AssertionError("an offer was answered out of turn")
            if self._chance is not None:
                self._remember(self._parent[account], heap[0])
            turn = self._turn(account)
            if turn is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, turn)
            account = self._parent[account]

    def _remember(self, account: int, turn: Turn) -> None:
        """Draws of these siblings go on from the number of this turn."""
        whole = (
            min(math.floor(turn[2]), math.ceil(turn[2]) - 1)
            if turn[2] == math.floor(turn[2])
            else math.floor(turn[2])
        )
        self._since[account, turn[0], whole] = -math.log(max(1.0 - (turn[2] - whole), 1e-300))

    def _turn(self, account: int) -> Turn | None:
        """What an account offers to the one above; None where it has nothing left to offer."""
        while True:
            if account in self._closed and self.only_claims:
                return None
            job = self._offered(account)
            if job == NOWHERE:
                return None
            stage = self._stage(account, job)
            if self.only_claims and stage != CLAIM:
                left = self._saved[account] + (self._due[account] - self._use[account] - 1) * self._quantum
                if self._first_draw or left < -1e-6 * self._quantum:
                    return None
                self._set_aside(account, job, stage)
                continue
            waits = self._running_first and not self._runs[job]
            number = round(self._number(account, job, stage), 9)
            return stage, waits, number, self._ahead(account), -self.size[job], account

    def _stage(self, account: int, job: int) -> int:
        size, quantum = self.size[job], self._quantum
        due = self._due[account]
        left = self._saved[account] + (due - self._use[account] - size) * quantum
        overtakes = job not in self._saving and self._overtakes(account, job, left)
        if due > 0 and left >= -1e-6 * quantum and not overtakes and not self._first_draw:
            return CLAIM
        if self._share[account] <= 0:
            return LEFTOVER
        return OVERTAKING if overtakes else SURPLUS

    def _overtakes(self, account: int, job: int, left: float) -> bool:
        """Whether the job would use what its account saves up for another gang below it.

        At a leaf that is all on the generations that the other gang may use; above, what is not within the
        guarantee of the account that offers the job.
        """
        kept = self._kept_for.get(account)
        if kept is not None:
            return bool((kept & self.able[job]).any())
        if left >= self._reserved[account] - 1e-6 * self._quantum or not self._heaps[account]:
            return False
        below = self._heaps[account][0][5]
        return self._use[below] + self.size[job] > self._due[below] + 1e-6

    def _number(self, account: int, job: int, stage: int) -> float:
        """Lower goes first: how many quanta an account is ahead; in a lottery whole ones, and chance decides the rest.

        Numbers drawn are arrival times of independent Poisson processes: the earliest is the winner of exactly
        this draw, and since the processes have no memory the rest need not be drawn again.
        """
        size, quantum = self.size[job], self._quantum
        if stage == CLAIM:
            weight = self._due[account]
            ahead = (self._use[account] - self._saved[account] / quantum) / weight
        else:
            weight, ahead = self._share[account] or 1.0, self._ahead(account)
        if self._chance is None:
            return ahead - (self._patience / quantum if self._runs[job] else 0.0)
        before = math.floor(ahead + 1e-9) if stage == CLAIM else 0
        if stage == SURPLUS:
            weight = max(weight + self._owed[account] / quantum, 1e-3 * weight)
        since = self._since.get((self._parent[account], stage, before), 0.0)
        return before + 1.0 - math.exp(-since - float(self._chance.exponential()) * size / weight)

    def _ahead(self, account: int) -> float:
        """Quanta of its share that an account is ahead of what it is owed in all."""
        ahead = self._use[account] - self._owed[account] / self._quantum
        return round(ahead / (self._share[account] or 1.0), 9)

    def _set_aside(self, account: int, job: int, stage: int) -> None:
        """The account has not saved up enough for the gang: it goes on saving, and offers another one."""
        leaf = self._account[job]
        below = self._heaps[account][0][0] if account != leaf else CLAIM
        if below == CLAIM and stage != OVERTAKING and job not in self._saving:
            self._save_for(leaf, job, account)
        kept = self._kept_for.get(leaf)
        self._kept_for[leaf] = self.able[job] if kept is None else kept | self.able[job]
        self._skip(leaf, job)
        self._aside[leaf] = self._aside.get(leaf, 0) + 1
        if self._aside[leaf] >= SCAN or self._strict[leaf]:
            self._closed.add(leaf)
        self._refresh(leaf, account)

    def _save_for(self, leaf: int, job: int, until: int) -> None:
        kept = self._kept_for.get(leaf)
        new = self.able[job] if kept is None else self.able[job] & ~kept
        earns, need = float(self._of_generation[leaf][new].sum()), self.size[job] * self._quantum
        reserved, account = [], leaf
        while True:
            saved = min(self._saved[leaf], self._saved[account]) if kept is None else 0.0
            amount = min(need, saved + earns * self._quantum)
            self._reserved[account] += amount
            reserved.append((account, amount))
            if account == until:
                break
            account = self._parent[account]
        self._saving[job] = reserved
