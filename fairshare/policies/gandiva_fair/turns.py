"""Decides which account may run its next gang, by gang-aware stride or lottery scheduling among leaf accounts.

`filling.py` uses this module in a loop. It asks `Turns` for the next gang, tries to find nodes for it, and reports the
result. A gang is *picked* when it has nodes and will run until the next round.

Terms:
- A *leaf* is an account without accounts below it, usually a user. Each leaf has a list of its jobs in the order in
  which it wants to run them (`job_order.py`).
- An *offer* is the gang that a leaf wants to run next. Each leaf has at most one offer at a time.
- An account's *guaranteed time* is the guaranteed GPU time that it saved in earlier rounds, plus what it earns in this
  quantum, minus what its picked gangs use in this quantum. The guarantee *covers* a gang if this time is enough to run
  the gang for one quantum (as in worst-case fair weighted fair queueing, Bennett and Zhang 1996).
- A *claim* is a gang that the guarantees of its leaf and of all accounts above the leaf cover.

Offers are served in four stages:
1. Claims.
2. Gangs that are covered by the guarantee of their leaf, but not by that of an account above it. This happens when
   other users of the team have used up the team's guaranteed time.
3. Other gangs of accounts with a share. They use surplus, that is, GPUs that others leave unused.
4. Gangs of accounts without a share.

Within a stage, stride scheduling serves the leaf that is furthest behind its share. A lottery draws a leaf at random,
in proportion to shares. In rounds between two quanta that only take back surplus (`Settings.reclaim`), running gangs
are served before the waiting gangs of their stage.

A leaf *saves* guaranteed time for one of its gangs in two cases:
- The gang is too large for the guaranteed time that the leaf has so far.
- The gang is a claim and the first job in the leaf's list, but no nodes have room for it.

The leaf can then offer gangs that come later in its list. The saved-for gang counts as if it already ran: a later gang
is a claim only if the guarantees cover both gangs together.

Dimensions of arrays: T accounts, J jobs, K generations.
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

# The stages in which offers are served. The depth of an account in the tree is added to WITHIN_OWN_GUARANTEE: it is the
# first account above the leaf whose guarantee does not cover the gang.
WITHIN_GUARANTEES, WITHIN_OWN_GUARANTEE, SURPLUS, WITHOUT_SHARE = 1, 2, 1 << 30, 1 << 31
# Number of gangs that an account passes over to find a gang within its guarantee.
SCAN = 4

# (stage, whether running gangs go before this gang, rank, -GPUs, account, job); the lowest offer is served first
Offer = tuple[int, bool, float, int, int, int]


class Turns:
    """The offers of all leaf accounts in one round, and the GPUs that each account has used in the round so far.

    Call `open` first: it collects one offer from each leaf. `next` then returns the gang to be served. Answer with
    `accepted` or `declined`, after which the leaf makes its next offer.

    Attributes for callers:
    - `taken` (J,): 1 for picked gangs, otherwise 0.
    - `kind` (J,): a number for each gang. Gangs with the same number have the same shape (workers, and GPUs per worker)
      and may run on the same generations. They therefore fit into the same places.
    - `unplaceable`: for each kind, 1 if no room was found for it. Gangs of such a kind are not offered.
    """

    def __init__(  # noqa: PLR0917 - what a decision has worked out before, in that order
        self,
        facts: Facts,
        able: Bools,
        order: JobOrder,
        shares: Shares,
        balances: Balances,
        lottery: np.random.Generator | None,
        strict: Sequence[bool],
    ) -> None:
        """Prepares the offers of one round. No gang is picked yet.

        - `able` (J, K): whether each job may run on each generation.
        - `order`: each leaf's list of jobs, in the order in which the leaf wants to run them.
        - `shares`: the GPUs that each account should have, by guarantee and in total.
        - `balances`: the GPU time that each account is owed from earlier rounds.
        - `lottery`: the random generator of the lottery, or None for stride scheduling.
        - `strict` (T,): whether a limit applies to the account or to an account above it. If so, a leaf skips at most
          one gang that is not a claim to find a later gang that is. Without a limit, it skips at most SCAN gangs.
        """
        tree, jobs, settings = facts.tree, facts.jobs, facts.settings
        self._strict = strict
        self._all, self._order, self._lottery = order, order, lottery
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
            lottery is not None and not balances.guaranteed.any() and not (jobs.running_on != NOWHERE).any()
        )
        # Whether an account may have claims.
        self._is_due: list[bool] = ((due > 0) & (not self._is_first_lottery)).tolist()
        self._use = [0.0] * len(due)
        self._saved_for: set[int] = set()  # gangs that are saved for
        self._deferred: set[int] = set()  # gangs that may go before saved-for gangs, but let others go first
        self._saved_on: dict[int, int] = {}  # generations that saved-for gangs accept, by account
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

    def charge(self, account: int, gpus: int) -> None:
        """Adds `gpus` to the GPUs that the account, and each account above it, has used in this round."""
        while account != NOWHERE:
            self._use[account] += gpus
            self._spare[account] -= gpus
            account = self._parent[account]

    def generations(self, job: int) -> list[int]:
        """Returns the indices of the generations on which the job may run."""
        choice = self._choice[job]
        if choice not in self._chosen:
            self._chosen[choice] = [k for k in range(choice.bit_length()) if choice >> k & 1]
        return self._chosen[choice]

    def one_of_each_kind(self) -> list[int]:
        """Returns one job of each kind, as a list. The job at index i is of kind number i; see the attribute `kind`."""
        found = np.zeros(len(self.unplaceable), dtype=np.int64)
        found[self._kinds] = np.arange(len(self._kinds))
        jobs: list[int] = found.tolist()
        return jobs

    def open(self, *, only_claims: bool) -> None:
        """Collects the first offer of each leaf. Gangs that their leaf skipped earlier are considered again.

        With `only_claims`, leaves offer only claims.
        """
        self.only_claims = only_claims
        unplaceable = np.frombuffer(self.unplaceable, dtype=bool)[self._kinds]
        self._order = self._all.without(unplaceable | np.frombuffer(self.taken, dtype=bool))
        self._heads = dict(self._order.begin)
        self._skipped: dict[int, int] = {}
        self._postponed: dict[int, list[tuple[int, int, int]]] = {}
        self._since = {}
        # Only leaves make offers. If teams did, a user's gang that fills a gap would make the team's other users wait.
        offers = map(self._offer, self._heads) if self._lottery is not None else self._first_offers()
        self._heap = [offer for offer in offers if offer is not None]
        heapq.heapify(self._heap)

    def next(self) -> int:
        """Returns the gang that is served next, or NOWHERE if no leaf has an offer any more.

        The caller answers with `accepted` or `declined`.
        """
        while self._heap:
            stage, _, _, _, account, job = self._heap[0]
            # Since the offer was made, its room may have gone, or other users of its team may have used up the
            # guarantee.
            gone = self.taken[job] or self.unplaceable[self.kind[job]]
            if not gone and (stage >= SURPLUS or stage == self._stage(account, job)):
                return job
            self._refresh(account)
        return NOWHERE

    def accepted(self, job: int) -> None:
        """Records that the gang returned by `next` was picked. Its leaf then makes its next offer."""
        self.picked(job)
        self._refresh(self._account[job])

    def picked(self, job: int) -> None:
        """Records that a gang was picked, whether or not `next` returned it. If its leaf saved guaranteed time for it,
        the leaf stops saving."""
        account = self._account[job]
        self.taken[job] = 1
        self.charge(account, self._size[job])
        if job in self._saved_for:
            self._saved_for.remove(job)
            self._needs[account] -= self._size[job]
            if self._needs[account] == 0:
                self._saved_on.pop(account)

    def declined(self, job: int, *, postpone: bool = False) -> None:
        """Records that the gang returned by `next` was not picked, for lack of room or because of limits. Its leaf then
        makes its next offer.

        `postpone`: if true, the gang is *postponed*: its leaf offers it a second time, after its other jobs of the same
        priority.
        """
        account = self._account[job]
        position = self._heads.get(account, 0)
        if self.unplaceable[self.kind[job]]:
            self._save_if_first(account, job)
        self._skip(account, job)
        if postpone:
            if not self._overtakes(account, job):
                self._deferred.add(job)
            late = self._postponed.setdefault(account, [])
            heapq.heappush(late, (int(self._order.level_end[position]), position, job))
        self._refresh(account)

    def is_postponed(self, job: int) -> bool:
        """Returns whether an offer of the gang is its second one, after it was postponed (see `declined`).

        `job`: the gang that its leaf offers now.
        """
        late = self._postponed.get(self._account[job])
        return late is not None and len(late) > 0 and late[0][2] == job

    def of_same_priority(self, job: int) -> list[int]:
        """Returns the gangs of the same leaf and priority as `job` that are not picked, in the leaf's order.

        Running services and sessions count as a separate priority. In rounds between two quanta (`Settings.reclaim`),
        running gangs and waiting gangs count as separate priorities, too.
        """
        order, account = self._all, self._account[job]
        end = order.level_end[order.listed.index(job, order.begin[account], order.end[account])]
        begin = bisect_left(order.level_end, end, order.begin[account], end)
        return [other for other in order.listed[begin:end] if not self.taken[other]]

    def is_first(self, job: int) -> bool:
        """Returns whether the job is the first in its leaf's list, that is, the job that the leaf wants to run most.

        The list includes jobs that were picked meanwhile.
        """
        return self._all.listed[self._all.begin[self._account[job]]] == job

    def is_same_claim(self, job: int, more: int) -> bool:
        """Returns whether the account of `job` can use `more` additional GPUs without exceeding a guarantee.

        The guarantees of the account and of all accounts above it count. Also returns True if one of them is already
        exceeded.
        """
        account = self._account[job]
        left = self._covered(account)
        return more <= left or left < 0

    def stopped(self, jobs: Sequence[int]) -> None:
        """Records that picked gangs are not picked any more, so that their GPUs are free. Gangs that found no room can
        be offered again."""
        for job in jobs:
            self.taken[job] = 0
            self.charge(self._account[job], -self._size[job])
        self.retry_all()

    def replaced(self, jobs: Sequence[int], other: int) -> None:
        """Records that the gang `other` was picked in place of the picked gangs `jobs` of the same account."""
        self.picked(other)
        self.stopped(jobs)

    def retry_all(self) -> None:
        """Forgets which kinds of gangs found no room, because there may be room for them now."""
        self.unplaceable = bytearray(len(self.unplaceable))

    def _next_job(self, account: int) -> int:
        """Returns the job that the leaf `account` wants to run next, or NOWHERE if no job is left.

        Skips jobs that are already picked, and jobs of kinds for which no room was found.
        """
        begin, end, listed = self._heads[account], self._order.end[account], self._order.listed
        taken, unplaceable, kind = self.taken, self.unplaceable, self.kind
        head = begin
        while head < end and (taken[listed[head]] or unplaceable[kind[listed[head]]]):
            head += 1
        if begin < head:
            self._save_if_first(account, listed[begin])
        if head != begin:
            self._heads[account] = head
        if not self._postponed:
            return listed[head] if head < end else NOWHERE
        late = self._postponed.get(account)
        while late and (taken[late[0][2]] or unplaceable[kind[late[0][2]]]):
            self._save_if_first(account, late[0][2])
            heapq.heappop(late)
        if late and late[0][0] <= head:
            return late[0][2]
        return listed[head] if head < end else NOWHERE

    def _skip(self, account: int, job: int) -> None:
        if self.is_postponed(job):
            heapq.heappop(self._postponed[account])
        else:
            self._heads[account] += 1

    def _refresh(self, account: int) -> None:
        """Replaces the leaf's current offer by its next offer, or removes it if the leaf has no other gang to offer.

        Raises AssertionError if the current offer is not the one that is served next.
        """
        first = self._heap[0]
        if first[4] != account:
            raise AssertionError("an offer was answered out of turn")
        if self._lottery is not None:
            self._store_arrival(first)
        offer = self._offer(account)
        if offer is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, offer)

    def _store_arrival(self, offer: Offer) -> None:
        """Stores the arrival time of `offer`, which has just won the lottery. `_rank` explains arrival times.

        Later draws in the same stage, with the same whole number in their rank, get later times.
        """
        stage, rank = offer[0], offer[2]
        whole = math.ceil(rank) - 1
        self._since[stage, whole] = -math.log(max(1.0 - (rank - whole), 1e-300))

    def _offer(self, account: int) -> Offer | None:
        """Returns the next offer of the leaf `account`, or None if the leaf has no gang to offer.

        If only claims are wanted, the leaf skips a few gangs that are not claims, and saves guaranteed time for them.
        """
        left, due = self._covered(account), self._is_due[account]
        while (job := self._next_job(account)) != NOWHERE:
            overtakes, size = self._overtakes(account, job), self._size[job]
            kept = self._needs[account] if overtakes else 0  # never 0 for a gang that overtakes
            is_claim = due and size + kept <= left
            if is_claim or not self.only_claims:
                stage = WITHIN_GUARANTEES if is_claim else self._stage(account, job)
                waits = self._running_first and self._running_on[job] == NOWHERE
                rank = round(self._rank(account, job, stage, kept), 9)
                return stage, waits, rank, -size, account, job
            tired = self._skipped.get(account, 0) >= SCAN or (
                self._strict[account] and account in self._skipped
            )
            if self._is_first_lottery:
                return None
            if tired and not self.is_postponed(job):  # only gangs that let others go first are still offered
                self._heads[account] = self._order.end[account]
                continue
            self._skip_and_save(account, job, overtakes=overtakes)
            if left < 1:
                return None
        return None

    def _first_offers(self) -> Iterator[Offer | None]:
        """Yields the first offer of each leaf, or None for a leaf without an offer. Works only for stride scheduling.

        The result is the same as calling `_offer` for each leaf, but faster.
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
        rank = np.round((use - owed) / weight + kept / weight - np.where(runs, self._patience, 0.0), 9)
        offers = is_claim if self.only_claims else np.ones(len(jobs), dtype=bool)
        columns = (stage, ~runs & self._running_first, rank, -size, accounts, jobs)
        yield from zip(*(column[offers].tolist() for column in columns), strict=True)
        yield from map(self._offer, accounts[~offers].tolist())

    def _overtakes(self, account: int, job: int) -> bool:
        """Returns whether `job` would overtake a gang for which its leaf `account` saves guaranteed time.

        It would if both gangs may run on a common generation. Gangs that were skipped because they would overtake count
        like gangs for which the leaf saves. The result is False in two exceptional cases:
        - The leaf saves guaranteed time for `job`, too.
        - `job` was postponed (see `declined`), and did not overtake at that time.
        """
        if not self._saved_on.get(account, 0) & self._choice[job]:
            return False
        return job not in self._saved_for and job not in self._deferred

    def _stage(self, account: int, job: int) -> int:
        """Returns the number of the stage in which the gang is served. Lower numbers are served first.

        The stages are described at the top of this file. There are two additions:
        - Stage 2 has several numbers. They depend on the nearest account above the leaf whose guarantee does not cover
          the gang: the closer to the root it is, the lower is the number.
        - In rounds between two quanta (`Settings.reclaim`), the gangs of stage 2 belong to stage 3.
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

    def _covered(self, account: int) -> float:
        """Returns how many more GPUs the guarantees of the account and of all accounts above it cover in this quantum.

        The result is negative if one of these guarantees is already exceeded.
        """
        spare, parent, left = self._spare, self._parent, math.inf
        while account != NOWHERE:
            left = spare[account] if spare[account] < left else left  # noqa: FURB136 - a call costs more
            account = parent[account]
        return left

    def _rank(self, account: int, job: int, stage: int, kept: int) -> float:
        """Returns the rank of an offer. Within a stage, the offer with the lowest rank is served first.

        In stride scheduling, the rank is the number of quanta by which the leaf is ahead of its share. For a running
        gang, the cost of a stop and a later resume, in quanta, is subtracted. Running gangs are therefore not stopped
        for small differences.

        In a lottery, the rank is the sum of two numbers:
        - A whole number. In stages 1 and 2, it is the number of quanta by which the leaf is ahead of its share, rounded
          down. In stages 3 and 4, it is 1 if `kept` is positive, and otherwise 0.
        - A random number between 0 and 1. It stands for the arrival time of the leaf in a Poisson process: the earlier
          the arrival, the lower the number. The arrival rate is the leaf's share divided by the GPUs of its gang. In
          stage 3, what the leaf is owed (GPU time divided by the quantum) is added to its share.

        `kept`: GPUs of the gangs for which the leaf saves guaranteed time. They count as if these gangs already ran.
        """
        weight = self._share[account] or 1.0
        ahead = (self._use[account] - self._owed[account]) / weight
        if kept:  # as if the saved-for gangs ran already
            ahead += kept / weight
        if self._lottery is None:
            return ahead - (0.0 if self._running_on[job] == NOWHERE else self._patience)
        before = math.floor(ahead + 1e-9) if stage < SURPLUS else int(kept > 0)
        if stage == SURPLUS:
            weight = max(weight + self._owed[account], 1e-3 * weight)
        # Offers that do not win keep their number: Poisson processes have no memory, so a new draw changes no chances.
        since = self._since.get((stage, before), 0.0)
        return before + 1.0 - math.exp(-since - float(self._lottery.exponential()) * self._size[job] / weight)

    def _skip_and_save(self, account: int, job: int, *, overtakes: bool) -> None:
        """Skips the gang `job`, which is not a claim, so that the leaf can offer a later gang.

        The leaf saves guaranteed time for `job`, unless `overtakes` is true.

        `overtakes`: the result of `_overtakes`.
        """
        if not overtakes:
            self._save_for(account, job)
        self._saved_on[account] = self._saved_on.get(account, 0) | self._choice[job]
        self._skip(account, job)
        self._skipped[account] = self._skipped.get(account, 0) + 1

    def _save_if_first(self, account: int, job: int) -> None:
        """Saves guaranteed time for `job`, which found no room, if it is a claim and the first job in its leaf's list.

        Does nothing if the job is picked, or if `open` was called without `only_claims`.
        """
        if (
            self.only_claims
            and self.is_first(job)
            and not self.taken[job]
            and self._stage(account, job) == WITHIN_GUARANTEES
        ):
            self._save_for(account, job)

    def _save_for(self, account: int, job: int) -> None:
        if job in self._saved_for:
            return
        self._saved_for.add(job)
        self._needs[account] = self._needs.get(account, 0) + self._size[job]
        self._saved_on[account] = self._saved_on.get(account, 0) | self._choice[job]
