"""Which jobs run on what their account holds, and what the account makes of a little more or less of a generation.

An account's jobs run in its own order, so a GPU more or less is that of the next or of the last jobs in this order.
Between two generations the jobs that gain most hold the fast one: comparative advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs

LEAST_GPUS = 1e-6  # less than this is nothing
# An account's generation counts as used up once so many of its jobs, one after the other, could use nothing more.
MISSES = 64


@dataclass(frozen=True, slots=True)
class Queue:
    """N entries of L accounts, those of one account side by side; entries of one group are served together."""

    leaf: Ints  # (N,)
    head: Ints  # (G,) the first entry of each group
    group: Ints  # (N,) which group each entry is of

    @classmethod
    def of(cls, leaf: Ints, group: Ints) -> Queue:
        """`group` (N,) has the same number for entries side by side that are served together."""
        new = np.ones(len(group), dtype=bool)
        new[1:] = group[1:] != group[:-1]
        return cls(leaf, np.flatnonzero(new), np.cumsum(new) - 1)

    @classmethod
    def one_by_one(cls, leaf: Ints) -> Queue:
        each = np.arange(len(leaf))
        return cls(leaf, each, each)

    def fill(self, size: Floats, most: Floats) -> Floats:
        """(N,) what each entry takes, group after group, up to its `size` (N,), of `most` (L,) of its account.

        The group for which too little is left shares it in proportion to size.
        """
        if not len(self.head):
            return np.zeros(0)
        total = np.add.reduceat(size, self.head)
        groups = Queue.one_by_one(self.leaf[self.head])
        taken = np.clip(most[groups.leaf] - groups.before(total), 0.0, total)
        part = np.divide(taken, total, out=np.zeros_like(total), where=total > 0)
        found: Floats = size * part[self.group]
        return found

    def before(self, size: Floats) -> Floats:
        """(N,) the sum of the sizes of its account's entries before each."""
        before = np.cumsum(size) - size
        new = np.ones(len(size), dtype=bool)
        new[1:] = self.leaf[1:] != self.leaf[:-1]
        found: Floats = before - before[new][np.cumsum(new) - 1]
        return found

    def mean(self, of: Floats, size: Floats, leaf: Ints, depth: Floats, *, first: bool) -> Floats:
        """(M,) the mean `of` (N,) the first (or the last) entries of accounts `leaf` (M,) up to a size `depth` (M,).

        0 where an account has none.
        """
        if not len(self.head):
            return np.zeros(len(leaf))
        # Sums over groups, one account after the other; what lies `depth` from an account's begin or end is between.
        sizes, sums = (np.append(0.0, np.cumsum(np.add.reduceat(x, self.head))) for x in (size, size * of))
        heads = self.leaf[self.head]
        begin, end = np.searchsorted(heads, leaf), np.searchsorted(heads, leaf, side="right")
        depth = np.minimum(depth, sizes[end] - sizes[begin])
        if first:
            found = np.interp(sizes[begin] + depth, sizes, sums) - sums[begin]
        else:
            found = sums[end] - np.interp(sizes[end] - depth, sizes, sums)
        mean: Floats = np.divide(found, depth, out=np.zeros(len(leaf)), where=depth > LEAST_GPUS)
        return mean


@dataclass(frozen=True, slots=True)
class Rows:
    """Jobs that take part, those of one account side by side in its own order; R of them, L accounts with jobs."""

    job: Ints  # (R,) index among all jobs
    leaf: Ints  # (R,) index among the L accounts
    account: Ints  # (L,)
    start: Ints  # (L + 1,) where each account's rows begin
    group: Ints  # (R,) the same number for jobs of one account that share evenly
    gpus: Floats  # (R,)
    able: Bools  # (R, K)
    rate: Floats  # (R, K) measured, 0 where unknown or where the job may not run
    by_speed: Ints  # (R, K) generations, those on which the job is fastest first
    units: tuple[Floats, ...]  # (R, K) each, what a GPU does for a job: an account is to lose in none of them

    @classmethod
    def of(
        cls,
        jobs: Jobs,
        able: Bools,
        takes_part: Bools,
        evenly: Bools | None = None,
    ) -> Rows:
        """`able` (J, K) where jobs may run; `takes_part` (T,) whose jobs; `evenly` (T,) whose share evenly.

        An account's own order is by priority, then by age; jobs of one priority share evenly where it says so.
        Progress is measured in GPUs of full speed and in GPUs of the slowest generation.
        """
        some = np.flatnonzero(able.any(axis=1) & takes_part[jobs.account])
        some = some[np.lexsort((some, -jobs.priority[some], jobs.account[some]))]
        account, start = np.unique(jobs.account[some], return_index=True)
        start = np.append(start, len(some)).astype(np.int64)
        new = np.ones(len(some), dtype=bool)
        if evenly is not None:
            priority, new = jobs.priority[some], ~evenly[jobs.account[some]]
            new[1:] |= priority[1:] != priority[:-1]
            new[start[:-1]] = True
        rate = np.where(able[some], np.nan_to_num(jobs.rate[some]), 0.0)
        speed = _speed(rate, able[some])
        return cls(
            job=some,
            leaf=np.repeat(np.arange(len(account)), np.diff(start)),
            account=account.astype(np.int64),
            start=start,
            group=np.cumsum(new),
            gpus=(jobs.workers * jobs.gpus)[some].astype(np.float64),
            able=able[some],
            rate=rate,
            by_speed=np.argsort(-speed, axis=1, kind="stable"),
            units=(speed, _plain(rate, speed, able[some])),
        )

    def of_leaves(self, leaves: Ints) -> Ints:
        """All rows of some accounts (indices among L)."""
        count = np.diff(self.start)[leaves]
        end = np.cumsum(count)
        found: Ints = np.arange(count.sum()) + np.repeat(self.start[leaves] - end + count, count)
        return found

    def run(self, held: Floats, leaves: Ints) -> tuple[Ints, Floats]:
        """The jobs that run (N,), and their GPUs (N, K), if some accounts hold `held` (L, K).

        In the account's order each job takes what is left of what it is fastest on. Then jobs of one account change
        places by comparative speed, on two generations after the other.
        """
        row, use = self._in_order(held, leaves)
        for slow, fast in rounds(held.shape[1]):
            _match(self.leaf[row], use, self.rate[row], slow, fast)
        return row, use

    def progress(self, row: Ints, use: Floats) -> Floats:
        """(U, L) what accounts make in each unit of the GPUs (N, K) of their jobs `row` (N,)."""
        each, leaf = np.ones(use.shape[1]), self.leaf[row]
        return np.stack(
            [np.bincount(leaf, (unit[row] * use) @ each, len(self.account)) for unit in self.units]
        )

    def _in_order(self, held: Floats, leaves: Ints) -> tuple[Ints, Floats]:
        begins = np.append(True, self.group[1:] != self.group[:-1])[: len(self.group)]
        in_group = np.bincount(self.group, self.gpus) if len(self.group) else self.gpus
        now, end, left = self.start[leaves], self.start[leaves + 1], held[leaves]
        misses, part = np.zeros(len(leaves), dtype=np.int64), np.ones(len(leaves))
        rows, uses = [now[:0]], [left[:0]]
        while len(now):
            size = in_group[self.group[now]]
            fresh = np.where(size == self.gpus[now], 1.0, np.minimum(left.sum(axis=1) / size, 1.0))
            part = np.where(begins[now], fresh, part)
            wants, took = self.gpus[now] * part, np.zeros_like(left)
            some = np.arange(len(now))
            for k in self.by_speed[now].T:
                gpus = np.minimum(wants, np.where(self.able[now, k], left[some, k], 0.0))
                took[some, k] += gpus
                wants -= gpus
            left -= took
            runs = took.any(axis=1)
            rows.append(now[runs])
            uses.append(took[runs])
            misses = np.where(runs, 0, misses + 1)
            now = now + 1
            goes_on = (now < end) & (left.sum(axis=1) > LEAST_GPUS) & (misses < MISSES)
            now, end, left, misses, part = (one[goes_on] for one in (now, end, left, misses, part))
        row = np.concatenate(rows)
        by = np.argsort(row)
        return row[by], np.concatenate(uses)[by]


def _speed(rate: Floats, able: Bools) -> Floats:
    """(R, K) over the best measured one; 1 where unknown, 0 where the job may not run."""
    best = rate.max(axis=1, keepdims=True, initial=0.0)
    found: Floats = np.divide(rate, best, out=able.astype(np.float64), where=rate > 0)
    return found


def _plain(rate: Floats, speed: Floats, able: Bools) -> Floats:
    """(R, K) GPUs of the slowest generation that do as much for each job; those of a typical one where unknown."""
    known = (rate > 0) & ((rate > 0).sum(axis=1) > 1)[:, None]
    typical = np.where(known, speed, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    typical = np.where(typical > 0, typical, 1.0)
    typical /= typical.min(initial=np.inf)
    slowest = np.where(rate > 0, typical, np.inf).argmin(axis=1)[:, None]
    unit = np.take_along_axis(rate, slowest, axis=1) / typical[slowest]
    found: Floats = np.divide(rate, unit, out=np.where(able, typical, 0.0), where=rate > 0)
    return found


def ratios(rows: Rows, slow: int, fast: int) -> Floats:
    """(R,) how many times as fast each job is on the fast generation; NaN where it was not measured on both."""
    low, high = rows.rate[:, slow], rows.rate[:, fast]
    found: Floats = np.divide(high, low, out=np.full(len(low), np.nan), where=(low > 0) & (high > 0))
    return found


def rounds(generations: int) -> list[tuple[Ints, Ints]]:
    """All pairs of generations, as in a tournament: in each round everyone meets one other."""
    seats = [*range(generations), *[NOWHERE] * (generations % 2)]
    half, found = len(seats) // 2, []
    for _ in range(len(seats) - 1):
        meets = [sorted(pair) for pair in zip(seats[:half], [*seats[:half:-1], seats[half]], strict=True)]
        slow, fast = (
            np.array([pair for pair in meets if NOWHERE not in pair], dtype=np.int64).reshape(-1, 2).T
        )
        found.append((slow, fast))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _match(leaf: Ints, use: Floats, rate: Floats, slow: Ints, fast: Ints) -> None:
    """Changes `use` (N, K) of running jobs so that, of those of one account, the dearest hold the fast generation.

    On all pairs of generations `slow` and `fast` (P,) at once, which have none in common.
    """
    runs = use[:, slow] + use[:, fast]
    some, pair = np.nonzero((runs > LEAST_GPUS) & (rate[:, slow] > 0) & (rate[:, fast] > 0))
    account = leaf[some] * len(slow) + pair
    ratio = rate[some, fast[pair]] / rate[some, slow[pair]]
    by = np.lexsort((-ratio, account))
    some, pair, account = some[by], pair[by], account[by]
    low, high, both = slow[pair], fast[pair], runs[some, pair]
    held = np.bincount(account, use[some, high]).astype(np.float64)
    on_fast = Queue.one_by_one(account).fill(both, held)
    use[some, high], use[some, low] = on_fast, both - on_fast


@dataclass(frozen=True, slots=True)
class Margin:
    """What accounts would sell or buy of the fast generation; B blocks, each of one job."""

    leaf: Ints  # (B,)
    ratio: Floats  # (B,) slow GPUs for a fast one: the least at which it sells, the most at which it may buy
    gpus: Floats  # (B,) of the fast generation


class Between:
    """The S jobs that were measured on both of two generations, and what runs of them there."""

    def __init__(self, rows: Rows, use: Floats, ratio: Floats, pair: tuple[int, int]) -> None:
        """`use` (R, K) as from `Rows.run`; `ratio` (R,) as from `ratios`, NaN for jobs that take no part."""
        slow, fast = pair
        leaves, here = len(rows.account), np.isfinite(ratio)
        both = np.where(here, use[:, slow] + use[:, fast], 0.0)
        some = np.flatnonzero(here & (np.bincount(rows.leaf, both, leaves) > LEAST_GPUS)[rows.leaf])
        self._leaves, self._leaf, self._ratio, self._runs = leaves, rows.leaf[some], ratio[some], both[some]
        self._order = Queue.of(self._leaf, rows.group[some])
        self._units = [(unit[some, slow], unit[some, fast]) for unit in rows.units]
        self._waits = np.maximum(rows.gpus[some] - use[some] @ np.ones(use.shape[1]), 0.0)
        self._on_fast = use[some, fast]
        self._on_slow = self._runs - self._on_fast
        self.slow, self.fast = (
            self._sums(self._on_slow),
            self._sums(self._on_fast),
        )  # (L,) GPUs under these jobs

    @property
    def waiting(self) -> Floats:
        """(L,) GPUs that these jobs would run on beyond those that they have."""
        return self._sums(self._waits)

    def sold(self) -> Margin:
        """What jobs on the fast generation would sell, those that gain least by it first.

        What is paid beyond one GPU for one is for the account's next jobs, in the mean of those that would run.
        """
        return self._margin(self._on_fast, self._waits, np.maximum, sells=True)

    def bought(self) -> Margin:
        """What jobs on the slow generation would buy, those that would gain most first.

        What they pay beyond one GPU for one is taken from the account's last jobs, in the mean of those that stop.
        """
        return self._margin(self._on_slow, self._runs, np.minimum, sells=False)

    def _margin(self, gpus: Floats, moved: Floats, worse: np.ufunc, *, sells: bool) -> Margin:
        """`moved` (S,) GPUs of the jobs that a price above 1 makes run, or stop, on the slow generation."""
        by = np.flatnonzero(gpus > LEAST_GPUS)
        by = by[np.lexsort((self._ratio[by] * (1 if sells else -1), self._leaf[by]))]
        ratio, leaf = self._ratio[by], self._leaf[by]
        paid = gpus[by] * np.maximum(ratio - 1, 0.0)
        paid = paid + Queue.one_by_one(leaf).before(paid)
        for low, high in self._units:
            gain = high[by] - low[by]
            # The first of an account's jobs makes room for those that gain more than it by the fast generation.
            least = np.full(self._leaves, np.inf)
            least[leaf[::-1]] = gain[::-1]
            does = np.maximum(low, high - least[self._leaf])
            worth = self._order.mean(does, moved, leaf, paid, first=sells)
            ratio = worse(ratio, np.divide(gain, worth, out=ratio - 1, where=worth > 0) + 1)
        return Margin(leaf, ratio, gpus[by])

    def _sums(self, of: Floats) -> Floats:
        """(L,) an amount of these jobs for each account."""
        return np.bincount(self._leaf, of, self._leaves).astype(np.float64)
