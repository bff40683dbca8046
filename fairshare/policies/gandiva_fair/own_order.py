"""Determines which jobs of an account would run on given GPUs, and on which generations.

This is an ideal division, which ignores nodes: a job may get only some of its GPUs, and GPUs of several generations.
Trades and affinities are computed from it.

In the order that the account wants, each job gets GPUs of its fastest generations, as far as GPUs are left. Jobs of the
account then swap GPUs between two generations, one pair of generations after another. The jobs that gain most by the
faster generation then run there (comparative advantage).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairshare.columns import across, anywhere, sort_keys
from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs
from fairshare.policies.gandiva_fair.queues import LEAST_GPUS, Queue

# A job runs on no generation, whatever its account trades, if the jobs before it need this many times the account's
# GPUs.
REACH = 4.0
MOST_PAIRINGS = 5


@dataclass(frozen=True, slots=True)
class GenerationPairs:
    """P pairs of a slow and a fast generation, between which GPUs are swapped or traded. No generation occurs in two
    pairs."""

    slow: Ints  # (P,)
    fast: Ints  # (P,)
    lean: Floats  # (R, P) rate on the fast generation / sum of both rates; NaN where a rate is not measured


@dataclass(frozen=True, slots=True)
class Rows:
    """R jobs of L leaf accounts, one row for each job. Preemptible jobs are not included.

    The rows of an account are adjacent and in the order in which the account wants its jobs to run.

    `units` says how much progress one GPU of each generation gives each job, in two units, as two arrays (R, K):

    - GPUs of the job's fastest generation
    - GPUs of the generation that is slowest on average over all jobs
    """

    job: Ints  # (R,) index among all jobs
    leaf: Ints  # (R,) index among the L accounts
    account: Ints  # (L,)
    start: Ints  # (L + 1,) where each account's rows begin
    last: Ints  # (L, K) the last row that may run on the generation; -1 where no row may
    head: Ints  # (R,) the first of the rows that share evenly with the row; the row itself where it shares with none
    size: Floats  # (R,) GPUs of all rows with the same head
    gpus: Floats  # (R,)
    able: Bools  # (R, K)
    rate: Floats  # (R, K) measured; 0 where unknown or where the job may not run
    by_speed: Ints  # (R, K) generations, the job's fastest first
    units: tuple[Floats, ...]  # (R, K) each: progress that a GPU gives a job; no account may lose in any unit
    # rounds of a tournament, in each of which every generation meets one other generation
    pairings: tuple[GenerationPairs, ...]

    @classmethod
    def of(cls, jobs: Jobs, able: Bools, holds: Floats, evenly: Bools | None = None) -> Rows:
        """Returns rows for the jobs that may run on some generation and whose account holds GPUs.

        An account wants jobs of higher priority first. Jobs of equal priority keep the order that they have in `jobs`.
        Jobs that come too late in this order to get GPUs are left out.

        - `able` (J, K): whether each job may run on each generation.
        - `holds` (T,): GPUs that each account holds.
        - `evenly` (T,): marks accounts that divide GPUs evenly among their jobs of equal priority. None: no account.
        """
        some = np.flatnonzero(anywhere(able) & (holds > LEAST_GPUS)[jobs.account])
        some = some[np.lexsort((-jobs.priority[some], *sort_keys(jobs.account[some])))]
        some = some[_within_reach(jobs, able, some, holds, evenly)]
        able, head = able.take(some, axis=0), _heads(jobs, some, evenly)
        gpus = (jobs.workers * jobs.gpus)[some].astype(np.float64)
        account, start = np.unique(jobs.account[some], return_index=True)
        rate = np.fmax(jobs.rate.take(some, axis=0), 0.0) * able
        speed = _speed(rate, able)
        at = np.where(able, np.arange(len(some))[:, None], NOWHERE)
        return cls(
            job=some,
            leaf=np.repeat(np.arange(len(account)), np.diff(np.append(start, len(some)))),
            account=account.astype(np.int64),
            start=np.append(start, len(some)).astype(np.int64),
            last=np.maximum.reduceat(at, start) if len(some) else at,
            head=head,
            size=np.bincount(head, gpus, len(some)).astype(np.float64)[head],
            gpus=gpus,
            able=able,
            rate=rate,
            by_speed=np.argsort(-speed, axis=1, kind="stable"),
            units=(speed, _in_slow_gpus(rate, speed, able)),
            pairings=_pairings(rate, speed),
        )

    def with_rates(self, rate: Floats) -> Rows:
        """Returns the same rows with other rates.

        `rate` (R, K): steps per second of each job on each generation, NaN where unknown.
        """
        rate = np.where(self.able, np.nan_to_num(rate), 0.0)
        speed = _speed(rate, self.able)
        return replace(self, rate=rate, units=(speed, _in_slow_gpus(rate, speed, self.able)))

    def of_leaves(self, leaves: Ints) -> Ints:
        """Returns the indices of all rows of some accounts.

        `leaves`: the accounts, as indices among the L leaf accounts.
        """
        count = np.diff(self.start)[leaves]
        end = np.cumsum(count)
        found: Ints = np.arange(count.sum()) + np.repeat(self.start[leaves] - end + count, count)
        return found

    def run(self, held: Floats, leaves: Ints) -> tuple[Ints, Floats]:
        """Returns which jobs would run on the given GPUs, and on which generations.

        - `held` (M, K): GPUs of each generation that each of M accounts holds.
        - `leaves` (M,): these accounts, as indices among the L leaf accounts.

        The result is a pair: the rows of the N jobs that would run, as an array (N,), and the GPUs of each generation
        that each of them would use, as an array (N, K).
        """
        row, use = self._in_order(held, leaves)
        leaf = self.leaf[row]
        for one in self.pairings:
            _swap_by_gain(leaf, use, one.lean.take(row, axis=0), one)
        return row, use

    def progress(self, row: Ints, use: Floats) -> Floats:
        """Returns the progress of each of L accounts in each of U units, as an array (U, L).

        - `row` (N,): the rows of the N jobs that run.
        - `use` (N, K): GPUs of each generation that each of these jobs uses.
        """
        leaf = self.leaf[row]
        made = (np.einsum("nk,nk->n", unit.take(row, axis=0), use) for unit in self.units)
        return np.stack([np.bincount(leaf, one, len(self.account)) for one in made])

    def _in_order(self, held: Floats, leaves: Ints) -> tuple[Ints, Floats]:
        now, left, last = self.start[leaves], held.copy(), self.last[leaves]
        part = np.ones(len(leaves))
        rows, uses = [now[:0]], [left[:0]]
        while len(now):
            begins = self.head[now] == now
            part = np.where(begins, np.minimum(across(left) / self.size[now], 1.0), part)
            part[self.size[now] == self.gpus[now]] = 1.0
            by = self.by_speed.take(now, axis=0) + (np.arange(len(now)) * left.shape[1])[:, None]
            there = (left * self.able.take(now, axis=0)).take(by)
            before = np.cumsum(there, axis=1) - there
            took = np.empty_like(left)
            wants = (self.gpus[now] * part)[:, None]
            took.put(by, np.clip(wants - before, 0.0, there))
            left -= took
            rows.append(now)
            uses.append(took)
            now = now + 1
            goes_on = anywhere((left > LEAST_GPUS) & (last >= now[:, None]))
            if not goes_on.all():
                now, left, last, part = now[goes_on], left[goes_on], last[goes_on], part[goes_on]
        row, use = np.concatenate(rows), np.concatenate(uses)
        runs = np.flatnonzero(anywhere(use > 0))
        runs = runs[np.argsort(row[runs])]
        return row[runs], use[runs]


def _heads(jobs: Jobs, some: Ints, evenly: Bools | None) -> Ints:
    """Returns, for each of N jobs, the position of the first job of its group, as an array (N,).

    If an account divides GPUs evenly, its jobs of equal priority form a group. Every other job is a group by itself.

    - `some` (N,): the jobs, sorted by account and by the order in which the account wants them.
    - `evenly` (T,): marks accounts that divide GPUs evenly. None: no account.
    """
    account, priority = jobs.account[some], jobs.priority[some]
    new = np.ones(len(some), dtype=bool)
    if evenly is not None:
        new[1:] = (account[1:] != account[:-1]) | (priority[1:] != priority[:-1]) | ~evenly[account[1:]]
    found: Ints = np.flatnonzero(new)[np.cumsum(new) - 1]
    return found


def _within_reach(jobs: Jobs, able: Bools, some: Ints, holds: Floats, evenly: Bools | None) -> Bools:
    """Returns which of N jobs are early enough in their account's order to get GPUs, as a mask (N,).

    A job is too late if, on every generation where it may run, earlier jobs of the account need at least REACH times as
    many GPUs as the account holds.

    - `able` (J, K): whether each job may run on each generation.
    - `some` (N,): the jobs, sorted by account and by the order in which the account wants them.
    - `holds` (T,): GPUs that each account holds, of all generations together.
    - `evenly` (T,): marks accounts that divide GPUs evenly among their jobs of equal priority. None: no account.
    """
    queue, head = Queue.one_by_one(jobs.account[some]), _heads(jobs, some, evenly)
    gpus, reach = (jobs.workers * jobs.gpus)[some], REACH * holds[jobs.account[some]]
    may = np.ascontiguousarray(able.take(some, axis=0).T)
    found: Bools = np.logical_or.reduce(may & (queue.before(may * gpus).take(head, axis=1) < reach))
    return found


def _speed(rate: Floats, able: Bools) -> Floats:
    """Returns each job's rates divided by its highest rate, as an array (R, K).

    The result is 1 where the rate is unknown and 0 where the job may not run.
    """
    best = rate.max(axis=1, keepdims=True, initial=0.0)
    found: Floats = np.divide(rate, best, out=able.astype(np.float64), where=rate > 0)
    return found


def _in_slow_gpus(rate: Floats, speed: Floats, able: Bools) -> Floats:
    """Returns how much progress one GPU of each generation gives each job, in GPUs of the slowest generation, as an
    array (R, K).

    The *typical worth* of a generation is the number of GPUs of the slowest generation that one of its GPUs is worth,
    on average over all jobs that were measured on at least two generations. The result for a job is:

    - on generations where it was measured: in proportion to its rates, with the typical worth on the slowest of them
    - on generations where its rate is unknown: the typical worth
    - on generations where it may not run: 0

    Parameters:
    - `rate` (R, K): measured rates, 0 where unknown.
    - `speed` (R, K): the result of `_speed`.
    - `able` (R, K): whether each job may run on each generation.
    """
    known = (rate > 0) & ((rate > 0).sum(axis=1) > 1)[:, None]
    typical = np.where(known, speed, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    typical = np.where(typical > 0, typical, 1.0)
    typical /= typical.min(initial=np.inf)
    slowest = np.where(rate > 0, typical, np.inf).argmin(axis=1)[:, None]
    unit = np.take_along_axis(rate, slowest, axis=1) / typical[slowest]
    found: Floats = np.divide(rate, unit, out=np.where(able, typical, 0.0), where=rate > 0)
    return found


def _pairings(rate: Floats, speed: Floats) -> tuple[GenerationPairs, ...]:
    """Returns several ways to divide the generations into pairs, in the order in which they are used.

    The ways are the rounds of a round-robin tournament: a generation has a different partner in each way, and one has
    none if their number is odd. The first way pairs the generation that is fastest on average with the slowest. There
    are at most MOST_PAIRINGS ways.

    - `rate` (R, K): measured rate of each job on each generation, 0 where unknown.
    - `speed` (R, K): the same rates divided by the job's highest rate.
    """
    known = rate > 0
    typical = np.where(known, speed, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    seats = np.argsort(typical, kind="stable").tolist()
    if len(seats) % 2:
        seats.insert((len(seats) + 1) // 2, NOWHERE)  # whichever generation meets NOWHERE has no pair
    half, found = len(seats) // 2, []
    for _ in range(min(len(seats) - 1, MOST_PAIRINGS)):
        meets = [
            pair for pair in zip(seats[:half], seats[: half - 1 : -1], strict=True) if NOWHERE not in pair
        ]
        slow, fast = np.array(meets, dtype=np.int64).reshape(-1, 2).T
        swaps = typical[slow] > typical[fast]
        slow, fast = np.where(swaps, fast, slow), np.where(swaps, slow, fast)
        on_slow, on_fast = rate.take(slow, axis=1), rate.take(fast, axis=1)
        lean = np.full(on_slow.shape, np.nan)
        np.divide(on_fast, on_slow + on_fast, out=lean, where=(on_slow > 0) & (on_fast > 0))
        found.append(GenerationPairs(slow, fast, lean))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(found)


def _swap_by_gain(leaf: Ints, use: Floats, lean: Floats, pairs: GenerationPairs) -> None:
    """Swaps GPUs between jobs of each account, so that the jobs that gain most get the fast generation of each pair.

    Each job keeps its number of GPUs, and each account keeps its number of GPUs of each generation.

    - `leaf` (N,): the account of each job.
    - `use` (N, K): the GPUs of each job on each generation, changed in place.
    - `lean` (N, P): the job's rate on the fast generation of each pair, divided by the sum of its rates on both. A job
      with NaN swaps no GPUs, because one of its rates is unknown.
    - `pairs`: the pairs of generations.
    """
    runs = use.take(pairs.slow, axis=1) + use.take(pairs.fast, axis=1)
    some, pair = np.nonzero((runs > LEAST_GPUS) & (lean > 0))
    account = leaf[some] * len(pairs.slow) + pair
    by = np.argsort(
        account - lean[some, pair], kind="stable"
    )  # so that the result for an account does not depend on the other accounts that are asked
    some, pair, account = some[by], pair[by], account[by]
    low, high, both = pairs.slow[pair], pairs.fast[pair], runs[some, pair]
    held = np.bincount(account, use[some, high]).astype(np.float64)
    on_fast = np.clip(held[account] - Queue.one_by_one(account).before(both), 0.0, both)
    use[some, high], use[some, low] = on_fast, both - on_fast
