"""Computes the GPUs that each account is due for a set of jobs. It uses linear programs and no code of any policy.

- An account's *private cluster* is its entitlement: the GPUs of each generation that its tickets earn among the
  accounts that have jobs.
- *Progress* is counted in GPUs: a GPU on which a job runs at half of its best speed counts as half.
- An account's *guarantee* is the most progress that its jobs could make on the private cluster.
- An account's *share* is what it is due: its guarantee, and a part of the GPUs that others leave unused. A share counts
  the GPUs of all generations together.

The shares of siblings are max-min fair by tickets, as far as guarantees permit. They are computed level by level of the
account tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from scipy.optimize import linprog

from fairshare.check.economy import INF, Economy
from fairshare.model import NOWHERE, Floats

ROUNDING = 1e-6  # GPUs; linear programs are solved to about a tenth of this
TOLERANCE = 1e-4  # GPUs by which a share may be below the largest possible one

_Kind = tuple[int, tuple[float, ...], tuple[int, int]]


class Oracle:
    """The shares, guarantees and private clusters of all accounts while exactly the jobs `active` want to run."""

    def __init__(self, economy: Economy, active: Iterable[int]) -> None:
        self.economy = economy
        self.active = [j for j in active if economy.able[j].any()]
        sizes: dict[_Kind, float] = {}
        for j in self.active:
            kind = self._kind(j)
            sizes[kind] = sizes.get(kind, 0.0) + economy.jobs[j].size
        self._class = {kind: c for c, kind in enumerate(sizes)}
        self._class_size = list(sizes.values())
        self._class_path = [set(economy.paths[leaf]) for leaf, *_ in sizes]
        self._class_leaf = [leaf for leaf, *_ in sizes]
        self._speed = np.array([speed for _, speed, _ in sizes]).reshape(len(sizes), economy.generations)
        filled = {self._kind(j): economy.filled[j] for j in self.active}
        together = np.array(list(filled.values())).reshape(len(sizes), economy.generations)
        # There is one variable for each pair of a class and a generation on which the class may run.
        self._cell = np.argwhere(self._speed > 0)
        self._value = self._speed[self._speed > 0]
        # The most GPUs of the generation that the gangs of the class can use.
        self._together = together[self._speed > 0]
        below = np.zeros((len(economy.accounts), len(self._cell)))
        for i, (c, _) in enumerate(self._cell.tolist()):
            below[list(self._class_path[c]), i] = 1.0
        self._below = below
        self._on = (self._cell[:, 1] == np.arange(economy.generations)[:, None]).astype(np.float64)
        self._of_class = (self._cell[:, 0] == np.arange(len(sizes))[:, None]).astype(np.float64)

    def _kind(self, job: int) -> _Kind:
        """Returns the key of the job's class. Jobs of one class have the same account, speeds, number of workers and
        GPUs per worker."""
        economy = self.economy
        return (
            economy.jobs[job].account,
            tuple(economy.speed[job].tolist()),
            (economy.jobs[job].workers, economy.jobs[job].gpus),
        )

    @property
    def plain(self) -> bool:
        """Returns whether each job is equally fast on all generations where it may run."""
        return bool(np.all(self._value == 1.0))

    @cached_property
    def leaves(self) -> list[int]:
        """Returns the leaf accounts that have at least one active job that can run, in ascending order."""
        return sorted(set(self._class_leaf))

    @cached_property
    def present(self) -> set[int]:
        """Returns the accounts that take part: leaves with active jobs that can run, and all accounts above these
        leaves."""
        return set().union(*self._class_path) if self._class_path else set()

    @cached_property
    def entitled(self) -> Floats:
        """Returns each account's private cluster: its GPUs of each generation, as an array (T, K)."""
        return self._handed_down(within_limits=False)

    @cached_property
    def means(self) -> Floats:
        """Returns the GPUs from which each account's guarantee is computed, as an array (T, K).

        These are the account's private cluster, reduced by the limits of all accounts above it. The account's own
        limits are applied later, when its guarantee is computed.
        """
        return self._handed_down(within_limits=True)

    def _handed_down(self, *, within_limits: bool) -> Floats:
        accounts = self.economy.accounts
        found = np.zeros((len(accounts), self.economy.generations))

        def hand_down(parent: int, amount: Floats) -> None:
            children = [t for t in self.economy.children.get(parent, []) if t in self.present]
            tickets = sum(accounts[t].tickets for t in children)
            for t in children:
                found[t] = has = amount * accounts[t].tickets / tickets
                if within_limits:
                    has = np.minimum(has, [accounts[t].cap.get(k, INF) for k in range(len(has))])
                    has = has * min(1.0, accounts[t].cap_total / max(has.sum(), ROUNDING))
                hand_down(t, has)

        hand_down(NOWHERE, self.economy.capacity)
        return found

    def _limits(self, limit: Floats) -> tuple[list[Floats], list[float]]:
        """Returns the constraints on the use of GPUs for a linear program: rows and bounds of `row @ x <= bound`.

        The variables x are the GPUs that each class of similar jobs uses on each generation. The constraints are:
        - All classes together use at most `limit` (K,) GPUs of each generation.
        - A class uses no more GPUs than its jobs need.
        - On one generation, a class uses no more GPUs than whole gangs of the class can occupy.
        - No account exceeds its limits.
        """
        rows, bounds = [*self._on, *self._of_class], [*limit.tolist(), *self._class_size]
        rows += list(np.eye(len(self._cell)))
        bounds += self._together.tolist()
        for t, account in enumerate(self.economy.accounts):
            if account.cap_total < INF:
                rows.append(self._below[t])
                bounds.append(account.cap_total)
            for k, most in account.cap.items():
                rows.append(self._below[t] * self._on[k])
                bounds.append(most)
        return rows, bounds

    def _best(
        self, gain: Floats, rows: list[Floats], bounds: list[float], most: Floats | None = None
    ) -> Floats | None:
        """Solves a linear program: returns the x that maximises gain @ x, where 0 ≤ x ≤ `most` and rows @ x ≤ bounds.

        Returns None if no x meets the constraints. Without `most`, x has no upper bound.
        """
        upper = np.full(len(gain), np.inf) if most is None else most
        found = linprog(
            -gain, A_ub=np.array(rows), b_ub=np.array(bounds), bounds=np.stack([upper * 0, upper], axis=1)
            if most is not None else (0, None), method="highs",
        )  # fmt: skip
        return None if found.x is None else np.asarray(found.x, dtype=np.float64)

    def made_of(self, gpus: Floats, account: int) -> Floats:
        """Returns how an account's jobs would make the most progress with `gpus` (K,), the GPUs of each generation.

        The result is an array with one entry for each pair of a class of similar jobs and a generation where these jobs
        may run. The entry is the number of GPUs of the generation that the class uses.
        """
        rows, bounds = self._limits(gpus)
        upper = np.where(self._below[account] > 0, self.economy.capacity.sum(), 0.0)
        best = self._best(self._value * self._below[account], rows, bounds, upper)
        assert best is not None  # noqa: S101 - zero is a solution
        return best

    def progress_of(self, gpus: Floats, account: int) -> float:
        """Returns the most progress that the account's jobs could make with `gpus` (K,), the GPUs of each
        generation."""
        return float(self._value @ self.made_of(gpus, account))

    @cached_property
    def guarantee(self) -> tuple[Floats, Floats, Floats]:
        """Returns each account's guarantee, as three arrays (T,).

        - The most progress that the account's jobs can make on its private cluster within all limits.
        - The fewest GPUs with which the jobs can make this progress.
        - The most GPUs that the jobs can use while they make this progress.
        """
        count = len(self.economy.accounts)
        progress, fewest, most = np.zeros(count), np.zeros(count), np.zeros(count)
        for t in sorted(self.present):
            rows, bounds = self._limits(self.means[t])
            mine = self._below[t]
            upper = np.where(mine > 0, self.economy.capacity.sum(), 0.0)
            best = self.made_of(self.means[t], t)
            progress[t] = self._value @ best
            fewest[t] = most[t] = best.sum()
            if not self.plain:
                rows, bounds = [*rows, -self._value * mine], [*bounds, ROUNDING - progress[t]]
                least, largest = (self._best(sign * mine, rows, bounds, upper) for sign in (-1.0, 1.0))
                fewest[t] = fewest[t] if least is None else least.sum()
                most[t] = most[t] if largest is None else largest.sum()
        if not self.plain:  # The best use for a team may not be the best for each of its users.
            for t in range(count - 1, -1, -1):
                children = [fewest[child] for child in self.economy.children.get(t, [])]
                fewest[t] = min(fewest[t], sum(children)) if children else fewest[t]
        return progress, fewest, most

    def in_order(self, leaf: int, jobs: Iterable[int]) -> float:
        """Returns the most progress of a leaf account on its private cluster if its `jobs` get GPUs one after the
        other.

        Each job gets as many GPUs as it can use. The order decides only how many GPUs each job gets. Their generations
        are chosen so that the total progress is as large as possible.
        """
        rows, bounds = self._limits(self.entitled[leaf])
        held = np.zeros(len(self._class_size))
        for j in jobs:
            c = self._class[self._kind(j)]
            best = self._best(self._of_class[c], [*rows, *-self._of_class], [*bounds, *(ROUNDING - held)])
            most = held[c] if best is None else float(self._of_class[c] @ best)
            held[c] = min(held[c] + self.economy.jobs[j].size, max(most, held[c]))
        best = self._best(
            self._value * self._below[leaf], [*rows, *-self._of_class], [*bounds, *(ROUNDING - held)]
        )
        return 0.0 if best is None else float(self._value * self._below[leaf] @ best)

    def _floors(self) -> tuple[list[Floats], list[float]]:
        """Returns constraints for a linear program: each leaf makes at least the progress of its guarantee.

        The result is a pair of rows and bounds, as in `_limits`. If `plain` is true, it has such constraints for inner
        accounts, too.
        """
        progress = self.guarantee[0]
        kept = sorted(self.present) if self.plain else self.leaves
        rows = [-self._value * self._below[t] for t in kept]
        return rows, [ROUNDING - progress[t] for t in kept]

    def unfair(self, share: Floats) -> tuple[str | None, float]:
        """Checks whether `share` (T, K), the GPUs of each account on each generation, is max-min fair.

        Returns a pair: a sentence that names the account treated worst, and the GPUs that this account lacks. Returns
        (None, 0.0) if the share is fair.
        """
        total = share.sum(axis=1)
        rows, bounds = self._limits(self.economy.capacity)
        floors, least = self._floors()
        rows, bounds = rows + floors, bounds + least
        if not self.present:
            return None, 0.0
        depth = [len(path) for path in self.economy.paths]
        worst: tuple[str | None, float] = (None, 0.0)
        for parent, group in sorted(self.economy.children.items()):
            members = [t for t in group if t in self.present]
            level = {t: total[t] / self.economy.accounts[t].tickets for t in members}
            for t in members:
                # Siblings with no more GPUs per ticket keep what they have, and so do all accounts of upper levels and
                # of other families on the same level.
                keeps = [o for o in members if o == t or level[o] <= level[t] + ROUNDING]
                keeps += [o for o in self.present if o not in members and depth[o] <= depth[t]]
                wanted = [-self._below[o] for o in keeps]
                held = [ROUNDING - total[o] for o in keeps]
                if parent != NOWHERE:
                    wanted, held = [*wanted, self._below[parent]], [*held, total[parent] + ROUNDING]
                best = self._best(self._below[t], rows + wanted, bounds + held)
                if best is None:
                    return (
                        f"the GPUs cannot be divided so that account {t} and the accounts that must keep their GPUs get"
                        " at least their shares, and all guarantees and limits hold; each account's share, in GPUs:"
                        f" {np.round(total, 3).tolist()}",
                        INF,
                    )
                gain = float(self._below[t] @ best - total[t])
                if gain > max(TOLERANCE, worst[1]):
                    worst = (
                        f"account {t} has {total[t]:.3f} GPUs, but could have {total[t] + gain:.3f} without taking GPUs"
                        " from a sibling account that has less per ticket",
                        gain,
                    )
        return worst

    def best_trade(self, least: Floats) -> Floats:
        """Returns the progress of each leaf after the best possible trade, as an array (T,).

        `least` (T,): the progress that each leaf must keep. The best trade has the largest sum of progress / `least`
        over all leaves.

        Raises ArithmeticError if no division of the GPUs lets all leaves keep their progress.
        """
        rows, bounds = self._limits(self.economy.capacity)
        made = [self._value * self._below[t] for t in self.leaves]
        worth = sum(
            (own / least[t] for own, t in zip(made, self.leaves, strict=True)), np.zeros(len(self._value))
        )
        kept = [ROUNDING - least[t] for t in self.leaves]
        best = self._best(worth, rows + [-own for own in made], bounds + kept)
        if best is None:
            raise ArithmeticError(
                "no division of the GPUs gives every account the progress that it must keep"
            )
        found: Floats = self._below @ (self._value * best)
        return found

    @cached_property
    def share(self) -> Floats:
        """Returns the number of GPUs that each account is due, over all generations together, as an array (T,).

        The numbers are max-min fair by tickets among siblings. Parents are computed before their children.
        """
        fixed = np.full(len(self.economy.accounts), np.nan)
        rows, bounds = self._limits(self.economy.capacity)
        floors, least = self._floors()
        rows, bounds = rows + floors, bounds + least
        for parent in [NOWHERE, *range(len(self.economy.accounts))]:
            group = [t for t in self.economy.children.get(parent, []) if t in self.present]
            if group:
                self._fix(group, fixed, rows, bounds)
        found: Floats = np.nan_to_num(fixed)
        return found

    def _fix(self, group: list[int], fixed: Floats, rows: list[Floats], bounds: list[float]) -> None:
        """Computes how many GPUs each of the siblings in `group` is due, and writes the numbers to `fixed`.

        `fixed` (T,): the GPUs that each account is due, over all generations together. NaN means that the number is not
        computed yet. Accounts that already have a number still get at least that many GPUs.

        `rows` and `bounds`: the constraints that the division must meet, as `_limits` returns them.
        """
        held = [t for t in range(len(fixed)) if np.isfinite(fixed[t])]
        rows = rows + [-self._below[t] for t in held]
        bounds = bounds + [ROUNDING - fixed[t] for t in held]
        parent = self.economy.accounts[group[0]].parent
        if parent != NOWHERE:
            rows, bounds = [*rows, self._below[parent]], [*bounds, fixed[parent] + ROUNDING]
        open_ = list(group)
        while open_:
            column = np.zeros(len(self._value) + 1)
            column[-1] = 1.0
            wide = [np.append(row, 0.0) for row in rows]
            wide += [
                np.append(-self._below[t], self.economy.accounts[t].tickets if t in open_ else 0.0)
                for t in group
            ]
            limits = bounds + [0.0 if t in open_ else ROUNDING - fixed[t] for t in group]
            best = self._best(column, wide, limits)
            if best is None:
                raise ArithmeticError("the linear program of shares has no solution")
            level, stuck = best[-1], []
            for t in open_:
                have = [level * self.economy.accounts[o].tickets if o in open_ else fixed[o] for o in group]
                floor = [ROUNDING - amount for amount in have]
                most = self._best(self._below[t], rows + [-self._below[o] for o in group], bounds + floor)
                top = level * self.economy.accounts[t].tickets
                reach = top if most is None else max(float(self._below[t] @ most), top)
                if reach - top <= 100 * ROUNDING:
                    stuck.append(t)
            for t in stuck or open_:
                fixed[t] = level * self.economy.accounts[t].tickets
            open_ = [t for t in open_ if not np.isfinite(fixed[t])]


def all_fit(
    economy: Economy, active: Iterable[int], *, least: Floats | None = None, most: int = 20_000
) -> bool | None:
    """Returns whether all active jobs can be placed so that they run at the same time. Jobs that can never run are
    ignored.

    If `least` (T,) is given, each leaf must also make at least this much progress.

    Returns None if the answer is unknown: the search took more than `most` steps, or an account has a limit on a single
    generation.
    """
    jobs = [(j, economy.jobs[j]) for j in active if economy.able[j].any()]
    for t, account in enumerate(economy.accounts):
        below = sum(job.size for _, job in jobs if t in economy.paths[job.account])
        if below > account.cap_total:
            return False
        if account.cap:
            return None
    if sum(job.size for _, job in jobs) > economy.capacity.sum():
        return False
    jobs.sort(key=lambda one: (-one[1].gpus, -one[1].workers, int(economy.able[one[0]].sum())))
    failed: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()
    steps, progress = 0, np.zeros(len(economy.accounts))

    def place(at: int, free: tuple[tuple[int, ...], ...]) -> bool:
        nonlocal steps
        if at == len(jobs):
            return least is None or bool(np.all(progress >= least - TOLERANCE))
        if least is None and (at, free) in failed:
            return False
        steps += 1
        if steps > most:
            raise TimeoutError
        j, job = jobs[at]
        for k in sorted(np.flatnonzero(economy.able[j]).tolist(), key=lambda k: -economy.speed[j, k]):
            gain = economy.speed[j, k] * job.size
            progress[job.account] += gain
            for left in _ways(free[k], job.workers, job.gpus):
                if place(at + 1, (*free[:k], left, *free[k + 1 :])):
                    return True
            progress[job.account] -= gain
        failed.add((at, free))
        return False

    empty = tuple(
        tuple(sorted(gpus for at, gpus in economy.nodes if at == k)) for k in range(economy.generations)
    )
    try:
        return place(0, empty)
    except (TimeoutError, RecursionError):
        return None


def _ways(free: tuple[int, ...], workers: int, gpus: int) -> Iterable[tuple[int, ...]]:
    """Yields the different ways to place `workers` workers of `gpus` GPUs each on the nodes of one generation.

    `free` has the free GPUs of each node. Each result has the free GPUs that remain, sorted.
    """
    if workers == 0:
        yield free
        return
    found: set[tuple[int, ...]] = set()
    # (node, workers still to place, free GPUs that remain on the nodes before)
    stack: list[tuple[int, int, tuple[int, ...]]] = [(0, workers, ())]
    while stack:
        node, rest, left = stack.pop()
        if rest == 0 or node == len(free):
            if rest == 0:
                whole = tuple(sorted((*left, *free[node:])))
                if whole not in found:
                    found.add(whole)
                    yield whole
            continue
        most = min(rest, free[node] // gpus)
        stack += [(node + 1, rest - here, (*left, free[node] - here * gpus)) for here in range(most + 1)]
