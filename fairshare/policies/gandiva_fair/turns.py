"""Orders gangs by gang-aware stride or lottery scheduling among the leaf accounts of the ticket tree.

Each leaf offers the gang that it would run next. There are two stages. In the first, only gangs take part that are
covered by the guarantees of their leaf and of all accounts above it. A guarantee covers a gang that fits into the
guaranteed GPU time that the account has saved and earns in this quantum (as in worst-case fair weighted fair queueing,
Bennett and Zhang 1996). In the second stage, all other gangs take part. In both stages, the leaf furthest behind
relative to its share goes first.

The second stage has an inner order. Some gangs are covered by the guarantee of their own leaf but not by that of an
account above, because other users of the team have used it. These gangs go before gangs that only use surplus.

Shares were already computed level by level of the tree, but turns are taken among leaves only. If teams took turns, a
gang that a user runs in a gap where nothing else fits would count against its team. The other users of the team would
then wait longer.

A leaf saves guaranteed GPU time for its next gang in two cases:
- The gang is too large for what the leaf has saved so far.
- The gang is the leaf's first and finds no room.

Later gangs of the leaf are then ordered as if this gang already ran. A later gang is within the guarantee only if the
guarantee covers both gangs together.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from fairshare.model import NOWHERE, Bools
from fairshare.policies.gandiva_fair.balances import Balances, guaranteed_after_trades
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.job_order import JobOrder, alike
from fairshare.policies.gandiva_fair.shares import Shares

# Stages of a turn: within all guarantees up the tree; within the guarantees below an account, whose depth is added to
# WITHIN_OWN_GUARANTEE; surplus; of accounts without a share.
WITHIN_GUARANTEES, WITHIN_OWN_GUARANTEE, SURPLUS, WITHOUT_SHARE = 1, 2, 1 << 30, 1 << 31
# Number of gangs that an account passes over to find a gang within its guarantee.
SCAN = 4

# (stage, whether running gangs go before this gang, number, -GPUs, account, job)
Turn = tuple[int, bool, float, int, int, int]


class Turns:
    """The order of turns in one round: each account's next offer, and the GPUs given to each account so far."""

    def __init__(  # noqa: PLR0917 - what a decision has worked out before, in that order
        self,
        facts: Facts,
        able: Bools,
        order: JobOrder,
        shares: Shares,
        balances: Balances,
        chance: np.random.Generator | None,
        strict: Sequence[bool],
    ) -> None:
        """Prepares the turns of one round.

        - `able` (J, K): whether each job may run on each generation.
        - `order`: the order in which each account wants its jobs to run.
        - `shares`: the GPUs that each account is due.
        - `balances`: the GPU time that each account is owed from earlier rounds.
        - `chance`: the random generator of a lottery, or None for stride scheduling.
        - `strict` (T,): whether the account, or an account above it, has a limit.

        An account whose next gang is beyond its guarantee can skip it, and offer a later gang that is within the
        guarantee. A strict account skips at most one gang in this way, other accounts up to SCAN gangs.
        """
        tree, jobs, settings = facts.tree, facts.jobs, facts.settings
        self._strict = strict
        self._all, self._order, self._chance = order, order, chance
        self._parent: list[int] = tree.parent.tolist()
        self._quantum, self._patience = settings.quantum, settings.switch_cost / settings.quantum
        self._running_first = settings.reclaim
        # From here on, amounts are in GPUs over this quantum.
        due = guaranteed_after_trades(shares).sum(axis=1)
        self._share: list[float] = shares.share.sum(axis=1).tolist()
        depth = np.zeros(len(due), dtype=np.int64)
        for below, accounts in enumerate(tree.levels):
            depth[accounts] = below
        self._depth: list[int] = depth.tolist()
        # The stage of gangs without a claim, by account.
        self._beyond = [SURPLUS if share > 0 else WITHOUT_SHARE for share in self._share]
        # An account that had more than its share in total has saved nothing: it already got back more than it lent.
        most = np.where(tree.is_leaf, np.maximum(balances.total, 0.0), np.inf)
        saved = np.minimum(balances.guaranteed, most) / settings.quantum
        self._spare: list[float] = (saved + due + 1e-6).tolist()  # GPUs that guarantees still cover
        self._owed: list[float] = (balances.total / settings.quantum).tolist()
        self._tree, self._sizes, self._runs = tree, facts.sizes, jobs.running_on != NOWHERE
        self._account, self._size, self._running_on = facts.account, facts.size, facts.running_on
        # If no gang runs and nothing is saved, there is nothing to protect, and all accounts take part in the first
        # lottery.
        self._is_first_lottery = (
            chance is not None and not balances.guaranteed.any() and not (jobs.running_on != NOWHERE).any()
        )
        # Whether an account may have claims.
        self._is_due: list[bool] = ((due > 0) & (not self._is_first_lottery)).tolist()
        self._use = [0.0] * len(due)
        self._saving: set[int] = set()  # gangs that are saved for
        self._deferred: set[int] = set()  # gangs that may go before saved-for gangs, but let others go first
        self._kept_for: dict[int, int] = {}  # generations that saved-for gangs accept, by account
        self._needs: dict[int, int] = {}  # GPUs of the saved-for gangs of each account
        self._since: dict[tuple[int, int], float] = {}
        self.taken = bytearray(len(jobs))  # 1 for each picked job
        choice = able @ (1 << np.arange(able.shape[1], dtype=np.int64))
        self._choice: list[int] = choice.tolist()  # generations where each job may run, as bits
        self._chosen: dict[int, list[int]] = {}
        # Jobs of one kind fit in the same places.
        self._kinds = alike(choice, jobs.workers, jobs.gpus)
        self.kind: list[int] = self._kinds.tolist()
        self.unplaceable = bytearray(max(self.kind, default=0) + 1)  # 1 for each kind without room
        self.only_claims = True

    def used(self, account: int, gpus: int) -> None:
        """Counts GPUs that the account was given outside its turns. They also count for all accounts above it."""
        while account != NOWHERE:
            self._use[account] += gpus
            self._spare[account] -= gpus
            account = self._parent[account]

    def generations(self, job: int) -> list[int]:
        """Returns the generations where the job may run."""
        choice = self._choice[job]
        if choice not in self._chosen:
            self._chosen[choice] = [k for k in range(choice.bit_length()) if choice >> k & 1]
        return self._chosen[choice]

    def one_of_each_kind(self) -> list[int]:
        """Returns a list with one job of each kind. The job's index in the list is the number of its kind.

        Jobs of one kind have the same shape and may run on the same generations. They therefore fit into the same
        places.
        """
        found = np.zeros(len(self.unplaceable), dtype=np.int64)
        found[self._kinds] = np.arange(len(self._kinds))
        jobs: list[int] = found.tolist()
        return jobs

    def open(self, *, only_claims: bool) -> None:
        """Collects the next offer of each account: the gang that it would run next.

        With `only_claims`, only gangs within guarantees are offered.
        """
        self.only_claims = only_claims
        unplaceable = np.frombuffer(self.unplaceable, dtype=bool)[self._kinds]
        self._order = self._all.without(unplaceable | np.frombuffer(self.taken, dtype=bool))
        self._heads = dict(self._order.begin)
        self._aside: dict[int, int] = {}
        self._late: dict[int, list[tuple[int, int, int]]] = {}
        self._since = {}
        offers = map(self._turn, self._heads) if self._chance is not None else self._offers()
        self._heap = [turn for turn in offers if turn is not None]
        heapq.heapify(self._heap)

    def next(self) -> int:
        """Returns the job whose turn is next, or NOWHERE if no account offers a job any more."""
        while self._heap:
            stage, _, _, _, account, job = self._heap[0]
            # Since the offer was made, its room may have gone, or other users of its team may have used up the
            # guarantee.
            gone = self.taken[job] or self.unplaceable[self.kind[job]]
            if not gone and (stage >= SURPLUS or stage == self._stage(account, job)):
                return job
            self._refresh(account)
        return NOWHERE

    def took(self, job: int) -> None:
        """Records that the job that `next` returned was picked. Its account then offers its next job."""
        self.picked(job)
        self._refresh(self._account[job])

    def picked(self, job: int) -> None:
        """Records that the job was picked, in its turn or outside it. Its account stops saving GPU time for it."""
        account = self._account[job]
        self.taken[job] = 1
        self.used(account, self._size[job])
        if job in self._saving:
            self._saving.remove(job)
            self._needs[account] -= self._size[job]
            if self._needs[account] == 0:
                self._kept_for.pop(account)

    def passed(self, job: int, *, later: bool = False) -> None:
        """Records that the job that `next` returned could not be placed. Its account then offers its next job.

        With `later`, the job is offered again after the other jobs of its priority.
        """
        account = self._account[job]
        position = self._heads.get(account, 0)
        if self.unplaceable[self.kind[job]]:
            self._save_claim(account, job)
        self._skip(account, job)
        if later:
            if not self._overtakes(account, job):
                self._deferred.add(job)
            late = self._late.setdefault(account, [])
            heapq.heappush(late, (int(self._order.level_end[position]), position, job))
        self._refresh(account)

    def is_late(self, job: int) -> bool:
        late = self._late.get(self._account[job])
        return late is not None and len(late) > 0 and late[0][2] == job

    def alike(self, job: int) -> list[int]:
        """Returns the jobs of the same account and priority that are not picked, in the order that the account
        wants."""
        order, account = self._all, self._account[job]
        end = order.level_end[order.listed.index(job, order.begin[account], order.end[account])]
        begin = bisect_left(order.level_end, end, order.begin[account], end)
        return [other for other in order.listed[begin:end] if not self.taken[other]]

    def is_first(self, job: int) -> bool:
        """Returns whether the job is the one that its account wants most, among all its jobs that take turns in this
        round."""
        return self._all.listed[self._all.begin[self._account[job]]] == job

    def is_same_claim(self, job: int, more: int) -> bool:
        """Returns False if the job's account would exceed its guarantees only because of `more` additional GPUs.

        Returns True if it would not exceed them, or exceeds them already. The guarantees of all accounts above are
        checked, too.
        """
        account = self._account[job]
        left = self._left(account)
        return more <= left or left < 0

    def stopped(self, jobs: Sequence[int]) -> None:
        """Records that picked jobs were stopped, so that their GPUs are free again."""
        for job in jobs:
            self.taken[job] = 0
            self.used(self._account[job], -self._size[job])
        self.retry_all()

    def exchanged(self, jobs: Sequence[int], other: int) -> None:
        """Records that picked jobs were replaced by the gang `other` of the same account."""
        self.picked(other)
        self.stopped(jobs)

    def retry_all(self) -> None:
        """Lets gangs that found no room be offered again, because there may be room for them now."""
        self.unplaceable = bytearray(len(self.unplaceable))

    def _own(self, account: int) -> int:
        """Returns the job that the account wants to run next, or NOWHERE if no job is left.

        Skips jobs that are already picked, and jobs for whose shape and generations no room was found.
        """
        begin, end, listed = self._heads[account], self._order.end[account], self._order.listed
        taken, unplaceable, kind = self.taken, self.unplaceable, self.kind
        head = begin
        while head < end and (taken[listed[head]] or unplaceable[kind[listed[head]]]):
            head += 1
        if begin < head:
            self._save_claim(account, listed[begin])
        if head != begin:
            self._heads[account] = head
        if not self._late:
            return listed[head] if head < end else NOWHERE
        late = self._late.get(account)
        while late and (taken[late[0][2]] or unplaceable[kind[late[0][2]]]):
            self._save_claim(account, late[0][2])
            heapq.heappop(late)
        if late and late[0][0] <= head:
            return late[0][2]
        return listed[head] if head < end else NOWHERE

    def _skip(self, account: int, job: int) -> None:
        if self.is_late(job):
            heapq.heappop(self._late[account])
        else:
            self._heads[account] += 1

    def _refresh(self, account: int) -> None:
        """Replaces the offer that is first in the order of turns by the account's next offer. If there is none, only
        removes it.

        The first offer must be one of `account`.
        """
        first = self._heap[0]
        if first[4] != account:
            raise AssertionError("an offer was answered out of turn")
        if self._chance is not None:
            self._remember(first)
        turn = self._turn(account)
        if turn is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, turn)

    def _remember(self, turn: Turn) -> None:
        """Stores the arrival time of an offer in the lottery.

        The random part of the offer's number encodes this time; see `_number`. Offers that are drawn later, in the same
        stage and with the same whole number, get later arrival times.
        """
        stage, number = turn[0], turn[2]
        whole = math.ceil(number) - 1
        self._since[stage, whole] = -math.log(max(1.0 - (number - whole), 1e-300))

    def _turn(self, account: int) -> Turn | None:
        """Returns the next offer of an account, with its position in the order; None if the account has no gang to
        offer."""
        left, due = self._left(account), self._is_due[account]
        while (job := self._own(account)) != NOWHERE:
            overtakes, size = self._overtakes(account, job), self._size[job]
            kept = self._needs[account] if overtakes else 0  # never 0 for a gang that overtakes
            is_claim = due and size + kept <= left
            if is_claim or not self.only_claims:
                stage = WITHIN_GUARANTEES if is_claim else self._stage(account, job)
                waits = self._running_first and self._running_on[job] == NOWHERE
                number = round(self._number(account, job, stage, kept), 9)
                return stage, waits, number, -size, account, job
            tired = self._aside.get(account, 0) >= SCAN or (self._strict[account] and account in self._aside)
            if self._is_first_lottery:
                return None
            if tired and not self.is_late(job):  # only gangs that let others go first are still offered
                self._heads[account] = self._order.end[account]
                continue
            self._set_aside(account, job, overtakes=overtakes)
            if left < 1:
                return None
        return None

    def _offers(self) -> Iterator[Turn | None]:
        """Yields the next offer of every account, with its position in the order; None for an account without an offer.

        Can be used only in stride scheduling. To save time, the offers of all accounts that can offer their first gang
        are computed together, and only the others one by one.
        """
        accounts = np.array(list(self._order.begin), dtype=np.int64)
        jobs = self._order.jobs[list(self._order.begin.values())]
        both = zip(accounts.tolist(), jobs.tolist(), strict=True)
        kept = np.array([self._needs[one] if self._overtakes(one, job) else 0 for one, job in both])
        use, owed, share, due = (
            np.array(of)[accounts] for of in (self._use, self._owed, self._share, self._is_due)
        )
        size, runs, weight = self._sizes[jobs], self._runs[jobs], np.where(share > 0, share, 1.0)
        spare = np.array(self._spare)
        is_claim = due & (size + kept <= self._tree.least_on_path(spare)[accounts])
        stage = np.where(is_claim, WITHIN_GUARANTEES, np.where(share > 0, SURPLUS, WITHOUT_SHARE))
        for i in np.flatnonzero(due & ~is_claim & (size + kept <= spare[accounts])).tolist():
            stage[i] = self._stage(int(accounts[i]), int(jobs[i]))
        number = np.round((use - owed) / weight + kept / weight - np.where(runs, self._patience, 0.0), 9)
        offers = is_claim if self.only_claims else np.ones(len(jobs), dtype=bool)
        columns = (stage, ~runs & self._running_first, number, -size, accounts, jobs)
        yield from zip(*(column[offers].tolist() for column in columns), strict=True)
        yield from map(self._turn, accounts[~offers].tolist())

    def _overtakes(self, account: int, job: int) -> bool:
        """Returns whether the job would run before another gang for which its account saves GPU time.

        The other gang counts only if it accepts one of the generations that `job` accepts. The result is also False
        in two cases:
        - The account also saves GPU time for `job`.
        - `job` was postponed (see `passed`) and did not overtake a gang at that time.
        """
        if not self._kept_for.get(account, 0) & self._choice[job]:
            return False
        return job not in self._saving and job not in self._deferred

    def _stage(self, account: int, job: int) -> int:
        """Returns the stage in which the gang has its turn. Lower stages come first.

        Gangs that are covered by the guarantees of their account and of all accounts above come first. For other gangs,
        the accounts are checked from the gang's own account upwards, until one has a guarantee that does not cover the
        gang. The closer this account is to the root, the earlier is the gang's turn.
        """
        if not self._is_due[account]:
            return self._beyond[account]
        kept = self._needs[account] if self._overtakes(account, job) else 0
        wanted, above = self._size[job] + kept, account
        while above != NOWHERE and wanted <= self._spare[above]:
            above = self._parent[above]
        if above == NOWHERE:
            return WITHIN_GUARANTEES
        # If only claims may stop running gangs, all gangs without a claim are in the same stage.
        is_own = above != account and not self._running_first
        return WITHIN_OWN_GUARANTEE + self._depth[above] if is_own else self._beyond[account]

    def _left(self, account: int) -> float:
        """Returns how many more GPUs the guarantees of the account and of all accounts above it cover."""
        spare, parent, left = self._spare, self._parent, math.inf
        while account != NOWHERE:
            left = spare[account] if spare[account] < left else left  # noqa: FURB136 - a call costs more
            account = parent[account]
        return left

    def _number(self, account: int, job: int, stage: int, kept: int) -> float:
        """Returns the number by which the offers of one stage are ordered; the lowest number goes first.

        In stride scheduling, the number says by how many quanta the account is ahead of its share. `kept`: GPUs of
        gangs for which the account saves GPU time. These gangs count as if they already ran.

        In a lottery, the number is a whole number plus a random part between 0 and 1. In the stages
        before SURPLUS, the whole number says by how many quanta the account is ahead, rounded down. In the other
        stages, it is 1 if `kept` is positive, otherwise 0.

        The random part encodes an arrival time. Each account has a Poisson process of arrivals, and the earliest
        arrival wins. An account that did not win keeps its number: Poisson processes have no memory, so a new draw
        would not change its chances.
        """
        weight = self._share[account] or 1.0
        ahead = (self._use[account] - self._owed[account]) / weight
        if kept:  # as if the saved-for gangs ran already
            ahead += kept / weight
        if self._chance is None:
            return ahead - (0.0 if self._running_on[job] == NOWHERE else self._patience)
        before = math.floor(ahead + 1e-9) if stage < SURPLUS else int(kept > 0)
        if stage == SURPLUS:
            weight = max(weight + self._owed[account], 1e-3 * weight)
        since = self._since.get((stage, before), 0.0)
        return before + 1.0 - math.exp(-since - float(self._chance.exponential()) * self._size[job] / weight)

    def _set_aside(self, account: int, job: int, *, overtakes: bool) -> None:
        """Skips a gang that the account's guarantees do not cover, so that the account can offer a later gang.

        `overtakes`: whether the gang would run before another gang for which the account already saves GPU time. If
        not, the account also saves GPU time for the skipped gang from now on.
        """
        if not overtakes:
            self._save_for(account, job)
        self._kept_for[account] = self._kept_for.get(account, 0) | self._choice[job]
        self._skip(account, job)
        self._aside[account] = self._aside.get(account, 0) + 1

    def _save_claim(self, account: int, job: int) -> None:
        """Lets the account save GPU time for a job that found no room.

        This is done only for the job that the account wants most, and only if the guarantees of the account and of all
        accounts above cover it. For any other job, nothing changes.
        """
        if (
            self.only_claims
            and self.is_first(job)
            and not self.taken[job]
            and self._stage(account, job) == WITHIN_GUARANTEES
        ):
            self._save_for(account, job)

    def _save_for(self, account: int, job: int) -> None:
        if job in self._saving:
            return
        self._saving.add(job)
        self._needs[account] = self._needs.get(account, 0) + self._size[job]
        self._kept_for[account] = self._kept_for.get(account, 0) | self._choice[job]
