"""Which jobs run on what their account holds, and at which ratios of speeds they would sell or buy a little of it.

An account's jobs run in its own order, so a GPU more or less is that of the next or of the last job in this order.
Between two generations the jobs that gain most hold the fast one: comparative advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints, Jobs

LEAST_GPUS = 1e-6  # less than this is nothing
# An account's generation counts as used up once so many of its jobs, one after the other, could use nothing more.
MISSES = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Jobs that take part, those of one account side by side in its own order; R of them, L accounts with jobs."""

    job: Ints  # (R,) index among all jobs
    leaf: Ints  # (R,) index among the L accounts
    account: Ints  # (L,)
    start: Ints  # (L + 1,) where each account's rows begin
    gpus: Floats  # (R,)
    able: Bools  # (R, K)
    rate: Floats  # (R, K) measured, 0 where unknown or where the job may not run
    speed: Floats  # (R, K) over the best measured one; 1 where unknown, 0 where the job may not run
    units: tuple[Floats, ...]  # (R, K) each, what a GPU does for a job: an account is to gain in all of them

    @classmethod
    def of(cls, jobs: Jobs, able: Bools, takes_part: Bools, *, in_order: bool) -> Rows:
        """`able` (J, K) where jobs may run; `takes_part` (T,) whose jobs.

        With `in_order` in the account's own order, by priority, then by age; gains are measured in GPUs of full
        speed and in GPUs of the slowest generation. Else who gains most by a fast GPU comes first, by the latter.
        """
        some = np.flatnonzero(able.any(axis=1) & takes_part[jobs.account])
        first = -jobs.priority[some] if in_order else -_plain(jobs, able, some).max(axis=1, initial=0.0)
        some = some[np.lexsort((some, first, jobs.account[some]))]
        account, start = np.unique(jobs.account[some], return_index=True)
        start = np.append(start, len(some)).astype(np.int64)
        speed, plain = _speed(jobs, able, some), _plain(jobs, able, some)
        return cls(
            job=some,
            leaf=np.repeat(np.arange(len(account)), np.diff(start)),
            account=account.astype(np.int64),
            start=start,
            gpus=(jobs.workers * jobs.gpus)[some].astype(np.float64),
            able=able[some],
            rate=_rate(jobs, able, some),
            speed=speed,
            units=(speed, plain) if in_order else (plain,),
        )

    def waiting(self, use: Floats) -> Floats:
        """(R,) GPUs that each job would run on, but does not."""
        running: Floats = use @ np.ones(use.shape[1])
        return self.gpus - running

    def run(self, use: Floats, held: Floats, leaves: Ints) -> None:
        """Sets in `use` (R, K) the GPUs of each job of some accounts, if these hold `held` (L, K).

        In the account's order each job takes what is left of what it is fastest on.
        """
        for at in leaves.tolist() if len(leaves) < 4 else ():
            use[self.start[at] : self.start[at + 1]] = 0.0
        if len(leaves) >= 4:
            use[np.isin(self.leaf, leaves)] = 0.0
        now, left = self.start[leaves], held[leaves].copy()
        end, misses = self.start[leaves + 1], np.zeros(len(leaves), dtype=np.int64)
        while len(now):
            wants, took = self.gpus[now].copy(), np.zeros_like(left)
            by_speed = np.argsort(-self.speed[now], axis=1, kind="stable")
            some = np.arange(len(now))
            for k in by_speed.T:
                gpus = np.minimum(wants, np.where(self.able[now, k], left[some, k], 0.0))
                took[some, k] += gpus
                wants -= gpus
            use[now] = took
            left -= took
            misses = np.where(took.any(axis=1), 0, misses + 1)
            now = now + 1
            goes_on = (now < end) & (left.sum(axis=1) > LEAST_GPUS) & (misses < MISSES)
            now, end, left, misses = now[goes_on], end[goes_on], left[goes_on], misses[goes_on]


def _rate(jobs: Jobs, able: Bools, some: Ints) -> Floats:
    return np.where(able[some], np.nan_to_num(jobs.rate[some]), 0.0)


def _speed(jobs: Jobs, able: Bools, some: Ints) -> Floats:
    rate = _rate(jobs, able, some)
    best = rate.max(axis=1, keepdims=True, initial=0.0)
    found: Floats = np.divide(rate, best, out=able[some].astype(np.float64), where=rate > 0)
    return found


def _plain(jobs: Jobs, able: Bools, some: Ints) -> Floats:
    """(R, K) GPUs of the slowest generation that do as much for each job; those of a typical one where unknown."""
    rate, speed = _rate(jobs, able, some), _speed(jobs, able, some)
    known = (rate > 0) & ((rate > 0).sum(axis=1) > 1)[:, None]
    typical = np.where(known, speed, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    typical = np.where(typical > 0, typical, 1.0)
    typical /= typical.min(initial=np.inf)
    slowest = np.where(rate > 0, typical, np.inf).argmin(axis=1)[:, None]
    unit = np.take_along_axis(rate, slowest, axis=1) / typical[slowest]
    found: Floats = np.divide(rate, unit, out=np.where(able[some], typical, 0.0), where=rate > 0)
    return found


@dataclass(frozen=True, slots=True)
class Blocks:
    """What jobs would sell or buy, in the order in which it is traded; B blocks."""

    row: Ints  # (B,)
    ratio: Floats  # (B,) slow GPUs for a fast one: the least at which it sells, the most at which it may buy
    gpus: Floats  # (B,) of the fast generation


@dataclass(frozen=True, slots=True)
class Margins:
    """What lies at the margin between two generations: the cheapest to sell first, the dearest to buy first."""

    sold: Blocks
    bought: Blocks


def ratios(rows: Rows, slow: int, fast: int) -> Floats:
    """(R,) how many times as fast each job is on the fast generation; NaN where it was not measured on both."""
    low, high = rows.rate[:, slow], rows.rate[:, fast]
    found: Floats = np.divide(high, low, out=np.full(len(low), np.nan), where=(low > 0) & (high > 0))
    return found


def margins(rows: Rows, use: Floats, party: Ints, ratio: Floats, pair: tuple[int, int]) -> Margins:
    """Matches the jobs that run on a pair of generations by comparative speed, and returns what lies at the margin.

    `use`, as from `Rows.run`, is changed to that; `party` (L,) is to which each account belongs, `ratio` as from
    `ratios`. An account sells for no less than what the GPUs could do for any job that it has, waiting ones too,
    and buys for those that run: so it gains whichever of its jobs come next.
    """
    slow, fast = pair
    running = use[:, slow] + use[:, fast]
    sells = np.bincount(rows.leaf, use[:, fast], len(rows.account)) > LEAST_GPUS
    some = np.flatnonzero(np.isfinite(ratio) & ((running > LEAST_GPUS) | sells[rows.leaf]))
    best = ratio[some].max(initial=1.0)
    some = some[
        np.argsort(rows.leaf[some] - ratio[some] / (2 * best), kind="stable")
    ]  # by account, dearest first
    leaf, running = rows.leaf[some], running[some]
    held: Floats = np.bincount(leaf, use[some, fast], len(rows.account)).astype(np.float64)[leaf]
    could, does = _fill(leaf, rows.gpus[some], held), _fill(leaf, running, held)
    use[some, fast], use[some, slow] = does, running - does
    wants = running - does
    sold, bought = could > LEAST_GPUS, wants > LEAST_GPUS
    asked = _asked(rows, some[sold], _next(rows, use, slow)[leaf[sold]], ratio[some[sold]], pair)
    return Margins(
        sold=_blocks(some[sold], asked, could[sold], party[leaf[sold]], asked),
        bought=_blocks(
            some[bought], ratio[some[bought]], wants[bought], party[leaf[bought]], -ratio[some[bought]]
        ),
    )


def _next(rows: Rows, use: Floats, generation: int) -> Ints:
    """(L,) the first job of each account that waits and may run on a generation; R where there is none."""
    waits = np.flatnonzero(rows.able[:, generation] & (rows.waiting(use) > LEAST_GPUS))
    first = np.full(len(rows.account), len(rows.job), dtype=np.int64)
    first[rows.leaf[waits[::-1]]] = waits[::-1]
    return first


def _asked(rows: Rows, row: Ints, then: Ints, ratio: Floats, pair: tuple[int, int]) -> Floats:
    """(B,) slow GPUs for a fast one so that an account loses in none of the units of `rows`.

    The job `row` (B,) moves to the slow generation; what is paid beyond one GPU is for the next job `then` (B,),
    which goes there itself, or to the fast one while another job like the first moves.
    """
    slow, fast = pair
    asked, has_next = ratio.copy(), then < len(rows.job)
    row, then = row[has_next], then[has_next]
    for unit in rows.units:
        loss = unit[row, fast] - unit[row, slow]
        gain = np.maximum(unit[then, slow], np.where(rows.able[then, fast], unit[then, fast] - loss, 0.0))
        asked[has_next] = np.maximum(asked[has_next], 1 + loss / gain)
    return asked


def _blocks(row: Ints, ratio: Floats, gpus: Floats, party: Ints, order: Floats) -> Blocks:
    by = np.lexsort((party, order))
    return Blocks(row[by], ratio[by], gpus[by])


def _fill(leaf: Ints, size: Floats, most: Floats) -> Floats:
    """What each row takes, one after the other, of `most` of its account; rows of an account side by side."""
    before = np.cumsum(size) - size
    first = (
        np.flatnonzero(np.append(True, leaf[1:] != leaf[:-1])) if len(leaf) else np.empty(0, dtype=np.int64)
    )
    before = before - np.repeat(before[first], np.diff(np.append(first, len(leaf))))
    taken: Floats = np.clip(most - before, 0.0, size)
    return taken
