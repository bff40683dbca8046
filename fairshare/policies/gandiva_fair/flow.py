"""Pools of GPUs divided among accounts side by side: weighted max-min of totals over several generations, exact.

Each account has classes of jobs, and each class its choice of generations, so that who gets how much is a flow
from accounts over classes to generations. All accounts rise together, by their tickets, until a set of generations
is full that some of them cannot avoid; those stop, and the others go on: the parametric maximum flow of Gallo,
Grigoriadis and Tarjan (SIAM Journal on Computing 18, 1989), with the level of each bottleneck found by Newton's
method for cuts. A pool has few generations and many classes, so that the residual graph is kept on generations
alone, its arcs being what all classes together could move. All pools of a level are worked on at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps
from fairshare.policies.gandiva_fair.columns import across, anywhere

EPSILON = 1e-9  # GPUs; less than this is nothing
SPREADS = 6  # passes that bring a first guess near to what pools have
_HALVINGS = 64  # of an interval, until it is as short as numbers allow


@dataclass(slots=True)
class Flow:
    """What each of C rows gets of K generations: jobs that are alike, or what such have for sure.

    A guarantee of jobs that are faster on some generations is a row of its own, which is full and stays so. Of those
    that are equally fast wherever they may run only the sum over all of a leaf is guaranteed: `base`.
    """

    leaf: Ints  # (C,) whose jobs they are
    gpus: Floats  # (C,) that it can use in all
    able: Bools  # (C, K)
    step: Steps  # (C, K) speed; a higher step is faster
    held: Floats  # (C, K)
    base: Floats  # (C, K) what of it counts for the guarantee of the leaf; 0 of rows that are kept whole
    is_kept: Bools  # (C,) whether it has all that it can use, and keeps it, on one generation or another

    @property
    def unmet(self) -> Floats:
        """(C,) GPUs that it could still use."""
        left: Floats = np.where(self.is_kept, 0.0, np.maximum(self.gpus - across(self.held), 0.0))
        return left

    @property
    def sure(self) -> Floats:
        """(C, K) what is guaranteed."""
        found: Floats = np.where(self.is_kept[:, None], self.held, self.base)
        return found

    @property
    def more(self) -> Floats:
        """(C, K) what is not guaranteed."""
        found: Floats = np.maximum(self.held - self.base, 0.0) * ~self.is_kept[:, None]
        return found

    def of(self, rows: Ints) -> Flow:
        """A copy of some rows."""
        return Flow(*(getattr(self, name).take(rows, axis=0) for name in self.__slots__))

    def __add__(self, other: Flow) -> Flow:
        """The rows of both."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Flow(*(np.concatenate(both) for both in parts))


class Pools:
    """One division: `flow` grows within what its pools have."""

    def __init__(self, flow: Flow, account: Ints, pool: Ints, gpus: Floats) -> None:
        """`account` (C,) numbers the accounts 0, 1, … and does not fall; likewise `pool` (A,) of each account.

        The rows of a leaf are side by side.

        `gpus` (G, K) is what each of G pools has. Every account has a row, and every pool an account.
        """
        self.flow, self.gpus = flow, gpus
        self._account, self._pool = account, pool
        self._first_row = np.flatnonzero(np.diff(account, prepend=-1))
        new_leaf = np.diff(flow.leaf, prepend=-1) != 0
        self._leaf, self._first_of_leaf = np.cumsum(new_leaf) - 1, np.flatnonzero(new_leaf)
        self._pool_of_leaf = pool[account[self._first_of_leaf]]
        self._leaves_of_pool = np.flatnonzero(np.diff(self._pool_of_leaf, prepend=-1))
        self._first_account = np.flatnonzero(np.diff(pool, prepend=-1))
        self._first_row_of_pool = self._first_row[self._first_account]
        self._pool_of_row = pool[account]
        self._nothing = EPSILON * (1.0 + gpus.sum(axis=1))  # (G,)

    def by_account(self, values: Floats) -> Floats:
        """Sums over the rows of each account."""
        found: Floats = np.add.reduceat(values, self._first_row, axis=0)
        return found

    def by_pool(self, values: Floats) -> Floats:
        """Sums over the accounts of each pool."""
        found: Floats = np.add.reduceat(values, self._first_account, axis=0)
        return found

    @property
    def load(self) -> Floats:
        """(G, K) GPUs of each pool that are given."""
        found: Floats = np.add.reduceat(self.flow.held, self._first_row_of_pool, axis=0)
        return found

    def fill(self, tickets: Floats, most: Floats) -> None:
        """Raise all accounts by `tickets` (A,) as far as each can use it and no further than to `most` (A,) GPUs.

        Nobody has more yet than what rows are guaranteed.
        """
        before = self.by_account(self.flow.gpus * self.flow.is_kept + across(self.flow.base))
        top = np.minimum(self.by_account(self.flow.gpus) - before, np.maximum(most - before, 0.0))
        rise = _Rise(tickets, before, top, np.zeros_like(top))
        self._raise(rise, top > EPSILON, np.zeros(len(top), dtype=bool))
        self.speed_up()

    def complete(self, most: Floats) -> None:
        """Give accounts that are alone in their pools what else they can use, and take from no row what it has.

        In all at most `most` (A,) GPUs; what rows have goes to slower generations only where that makes room.
        """
        pools = np.flatnonzero(anywhere(self.gpus - self.load > self._nothing[:, None]))
        if not len(pools):
            return
        some, rows, accounts = self._of(pools)
        rest, has = some.flow, some.flow.more
        kept = np.flatnonzero(anywhere(has > 0))
        rest.held -= has
        rest.gpus -= across(has)
        sure = rest.of(kept)
        sure.gpus, sure.held = across(has[kept]), has[kept]
        sure.base, sure.is_kept = np.zeros_like(sure.held), np.ones(len(kept), dtype=bool)
        order = np.argsort(np.append(np.arange(len(rows)), kept), kind="stable")
        both = Pools(
            (rest + sure).of(order),
            np.append(some._account, some._account[kept])[order],
            some._pool,
            some.gpus,
        )
        both.fill(np.ones(len(accounts)), most[accounts])
        at = np.argsort(order)
        held = both.flow.held[at[: len(rows)]]
        held[kept] += both.flow.held[at[len(rows) :]]
        self.flow.held[rows], self.flow.base[rows] = held, both.flow.base[at[: len(rows)]]

    def _raise(self, rise: _Rise, rising: Bools, tight: Bools) -> None:
        """Raise those of `rising` (A,) that what is left can reach; some of the `tight` (A,) stop in any case."""
        rising = self._still_rising(rising & (rise.grown < rise.top - EPSILON), tight)
        pools = np.unique(self._pool[rising])
        if len(pools) == len(self.gpus):
            self._raise_until_tight(rise, rising)
        elif len(pools):
            some, rows, accounts = self._of(pools)
            some._raise_until_tight(rise.of(accounts), rising[accounts])
            self.flow.held[rows], self.flow.base[rows] = some.flow.held, some.flow.base

    def _raise_until_tight(self, rise: _Rise, rising: Bools) -> None:
        """Raise until each pool is full or has some who cannot rise further, and go on with the others."""
        rise = self._grow(rise, rising)
        tight = np.zeros_like(rising)
        while (full := self._balance()).any():
            less, stuck = self._lower(full, rise, rising)
            rise, tight = replace(rise, grown=rise.grown - less), tight | stuck
            if less.sum() <= EPSILON:
                break
        is_tight = self.by_pool(tight.astype(np.float64)) > 0
        self._raise(rise, rising, np.where(is_tight[self._pool], tight, rising))

    def _of(self, pools: Ints) -> tuple[Pools, Ints, Ints]:
        """Some pools with copies of their rows, and which rows and accounts these are."""
        is_one = np.zeros(len(self.gpus), dtype=bool)
        is_one[pools] = True
        mine = is_one[self._pool]
        accounts, rows = np.flatnonzero(mine), np.flatnonzero(is_one[self._pool_of_row])
        account = (np.cumsum(mine) - 1)[self._account[rows]]
        pool = (np.cumsum(is_one) - 1)[self._pool[accounts]]
        return Pools(self.flow.of(rows), account, pool, self.gpus[pools]), rows, accounts

    def _still_rising(self, rising: Bools, tight: Bools) -> Bools:
        """Those of `rising` that what is left can reach; if these are all of a pool, without those that are `tight`."""
        left = self.gpus - self.load > self._nothing[:, None]
        if not (rising & left.any(axis=1)[self._pool]).any():
            return np.zeros_like(rising)
        reach = closed(np.swapaxes(self._arcs(), 1, 2), left)
        ways = anywhere(self.flow.able & reach[self._pool_of_row]) & (self.flow.unmet > EPSILON)
        goes_on = rising & (self.by_account(ways.astype(np.float64)) > 0)
        stops = self.by_pool((rising & ~goes_on).astype(np.float64)) > 0
        return goes_on & (stops[self._pool] | ~tight)

    def _grow(self, rise: _Rise, rising: Bools) -> _Rise:
        """Give all that are `rising` (A,) what is left, as if any of them could use any of it.

        The rows of an account get what it gets by what they lack, on generations in proportion to what is left.
        """
        flow = self.flow
        left = np.maximum(self.gpus - self.load, 0.0)

        def more_at(level: Floats) -> Floats:
            return np.maximum(self._at(rise, level) - rise.grown, 0.0) * rising

        more = more_at(self._highest(rise, lambda level: self.by_pool(more_at(level)) <= left.sum(axis=1)))
        lack = flow.unmet
        gets = lack * part_of(more, self.by_account(lack))[self._account]
        rows = np.flatnonzero(gets > 0)
        pool, first, where = np.unique(self._pool_of_row[rows], return_index=True, return_inverse=True)
        able, gets, nothing = flow.able[rows], gets[rows, None], self._nothing[pool, None]
        left = left[pool] + nothing
        pull = left.copy()
        for _ in range(SPREADS if len(rows) else 0):
            weight = able * pull[where]
            spread = weight * (gets / across(weight)[:, None])
            pull *= np.clip(left / (np.add.reduceat(spread, first, axis=0) + nothing), 1e-3, 1e3)
            pull /= pull.max(axis=1, keepdims=True)
            pull = np.maximum(pull, 1e-30)
        if len(rows):
            flow.held[rows] += spread
        return replace(rise, grown=rise.grown + more)

    def _at(self, rise: _Rise, level: Floats) -> Floats:
        """(A,) GPUs beyond what is guaranteed that a `level` (G,) gives each account."""
        found: Floats = np.clip(level[self._pool] * rise.tickets - rise.before, 0.0, rise.top)
        return found

    def _highest(self, rise: _Rise, may: Callable[[Floats], Bools]) -> Floats:
        """(G,) the highest level of each pool that it `may` have, and with it all lower ones."""
        low: Floats = np.zeros(len(self.gpus))
        high = np.maximum.reduceat((rise.before + rise.top) / rise.tickets, self._first_account)
        low = np.where(may(high), high, low)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if ((middle == low) | (middle == high)).all():
                break
            is_low = may(middle)
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return low

    def _balance(self) -> Bools:
        """Move what overloads a generation to others of its pool, as far as there is a way.

        Returns (G, K) the generations that are reached from an overloaded one, all of them full: what pools are
        asked for too much, and where.
        """
        full, is_stuck = np.zeros(self.gpus.shape, dtype=bool), np.zeros(len(self.gpus), dtype=bool)
        while True:
            over = self.gpus - self.load < -self._nothing[:, None]
            pools = np.flatnonzero(over.any(axis=1) & ~is_stuck)
            if not len(pools):
                return full
            some, rows, _ = self._of(pools) if len(pools) < len(self.gpus) else (self, slice(None), None)
            arcs = some._arcs()
            stuck = ~some._push(steps_to(arcs, some.gpus - some.load > some._nothing[:, None]), over[pools])
            self.flow.held[rows], self.flow.base[rows] = some.flow.held, some.flow.base
            full[pools[stuck]] = closed(arcs, over[pools])[stuck]
            is_stuck[pools[stuck]] = True

    def _push(self, steps: Ints, over: Bools) -> Bools:
        """One pass of moves down the `steps` (G, K) to what is free; returns (G,) where anything moved."""
        moved = np.zeros(len(steps), dtype=bool)
        generations = range(steps.shape[1])
        for distance in range(int(steps[over & (steps < FAR)].max(initial=0)), 0, -1):
            for k, to in product(generations, repeat=2):
                on_way = (steps[:, k] == distance) & (steps[:, to] == distance - 1)
                if not on_way.any():
                    continue
                spare = self.gpus - self.load
                want = np.where(on_way, np.maximum(-spare[:, k], 0.0), 0.0)
                if distance == 1:
                    want = np.minimum(want, np.maximum(spare[:, to], 0.0))
                want[want <= self._nothing / 4] = 0.0
                if want.any():
                    moved |= self._move(k, to, want) > self._nothing / 16
        return moved

    def _move(self, k: int, to: int, want: Floats) -> Floats:
        """Move `want` (G,) GPUs or what there is of them from one generation to another; returns how much.

        A row moves what it holds; or a leaf has one of its rows give up some of its guarantee for another that lacks,
        or an account some of the rest.
        """
        flow, where = self.flow, self._pool_of_row
        movable = flow.held[:, k] * flow.able[:, to]
        part = part_of(want, self.by_pool(self.by_account(movable)))[where]
        for amount in (flow.held, flow.base):
            moved = amount[:, k] * (movable > 0) * part
            amount[:, k] -= moved
            amount[:, to] += moved
        total = self.by_pool(self.by_account(movable * part))
        total += self._swap(k, to, want - total, within_leaves=False)
        return total + self._swap(k, to, want - total, within_leaves=True)

    def _swap(self, k: int, to: int, want: Floats, *, within_leaves: bool) -> Floats:
        """Let rows give up some of one generation for others that lack on another; returns how much.

        Rows of a leaf swap what is guaranteed, those of an account what is not.
        """
        want = np.where(want > self._nothing / 4, want, 0.0)
        if not want.any():
            return want
        flow = self.flow
        lacks: Floats = flow.unmet * flow.able[:, to]
        if within_leaves:
            first, owner, pool = self._first_of_leaf, self._leaf, self._pool_of_leaf
            gives = flow.base[:, k].copy()
        else:
            first, owner, pool = self._first_row, self._account, self._pool
            gives = np.where(flow.is_kept, 0.0, np.maximum(flow.held[:, k] - flow.base[:, k], 0.0))
        drop, room = np.add.reduceat(gives, first), np.add.reduceat(lacks, first)
        swap = np.minimum(drop, room)
        total = _count(pool, swap, len(want))
        swap *= part_of(want, total)[pool]
        less, more = gives * part_of(swap, drop)[owner], lacks * part_of(swap, room)[owner]
        for amount in (flow.held, flow.base) if within_leaves else (flow.held,):
            amount[:, k] -= less
            amount[:, to] += more
        return _count(pool, swap, len(want))

    def _arcs(self) -> Bools:
        """(G, K, K) whether some of a pool's generation could move to another."""
        flow, first = self.flow, self._first_row_of_pool
        count = flow.able.shape[1]
        able = flow.able.astype(np.float64)
        lacks = able * flow.unmet[:, None]
        drop, room = self.by_account(flow.more), self.by_account(lacks)
        base_drop, base_room = (
            np.add.reduceat(some, self._first_of_leaf, axis=0) for some in (flow.base, lacks)
        )
        found = np.empty((len(self.gpus), count, count))
        for k in range(count):
            found[:, k] = np.add.reduceat(flow.held[:, k : k + 1] * able, first, axis=0)
            found[:, k] += self.by_pool(np.minimum(drop[:, k : k + 1], room))
            swap = np.minimum(base_drop[:, k : k + 1], base_room)
            found[:, k] += np.add.reduceat(swap, self._leaves_of_pool, axis=0)
        arcs: Bools = found > self._nothing[:, None, None]
        arcs[:, np.arange(count), np.arange(count)] = False
        return arcs

    def _lower(self, full: Bools, rise: _Rise, rising: Bools) -> tuple[Floats, Bools]:
        """Newton's step: lower the level of pools until what is in the `full` (G, K) generations fits there.

        Returns how much less each account has then, and which are bound by that.
        """
        flow = self.flow
        inside = full[self._pool_of_row]
        more = flow.more
        more_inside, more_outside = across(more * inside), across(more * ~inside)
        # A leaf that has less outside can move there what it is guaranteed inside.
        of_leaf = np.add.reduceat(
            np.stack([across(flow.base * inside), more_outside]), self._first_of_leaf, axis=1
        )
        moves = of_leaf.min(axis=0)
        within = self.by_account(more_inside)
        there = (within + _count(self._account[self._first_of_leaf], moves, len(within))) * rising
        over = np.where(full, self.load - self.gpus, 0.0).sum(axis=1)
        over = np.minimum(over, self.by_pool(there))  # what is rounded away cannot be freed

        def less_at(level: Floats) -> Floats:
            lower: Floats = rise.grown - np.minimum(self._at(rise, level), rise.grown)
            return np.minimum(there, lower * rising)

        level = self._highest(rise, lambda level: self.by_pool(less_at(level)) >= over * (1 - 1e-12))
        concerned = np.asarray(full.any(axis=1))[self._pool]
        less = np.where(concerned, less_at(level), 0.0)
        inside_less = np.minimum(within, less)
        part_inside = part_of(inside_less, within)[self._account]
        part_moved = part_of(less - inside_less, there - within)[self._account]
        part_outside = part_moved * part_of(moves, of_leaf[1])[self._leaf]
        flow.held -= more * np.where(inside, part_inside[:, None], part_outside[:, None])
        return less, concerned & rising & (there > EPSILON)

    def speed_up(self) -> None:
        """Who runs faster on GPUs that nobody wants goes there."""
        flow, left = self.flow, np.maximum(self.gpus - self.load, 0.0)
        left[left <= self._nothing[:, None]] = 0.0
        rows = np.flatnonzero(anywhere(flow.able & (left > 0)[self._pool_of_row]) & anywhere(flow.held > 0))
        if not len(rows):
            return
        where, able, step = self._pool_of_row[rows], flow.able[rows], flow.step[rows]
        held, base = flow.held[rows], flow.base[rows]
        for to, k in product(range(able.shape[1]), repeat=2):
            movable = held[:, k] * (able[:, to] & (step[:, to] > step[:, k]))
            if not movable.any() or not left[:, to].any():
                continue
            asked = _count(where, movable, len(left))
            part = (movable > 0) * part_of(left[:, to], asked)[where]
            for amount in (held, base):
                moved = amount[:, k] * part
                amount[:, k] -= moved
                amount[:, to] += moved
            freed = np.minimum(left[:, to], asked)
            left[:, k] += freed
            left[:, to] -= freed
            left[left <= self._nothing[:, None]] = 0.0
        flow.held[rows], flow.base[rows] = held, base


@dataclass(frozen=True, slots=True)
class _Rise:
    """How far A accounts have risen."""

    tickets: Floats  # (A,)
    before: Floats  # (A,) GPUs that rows are guaranteed
    top: Floats  # (A,) most that each can have beyond
    grown: Floats  # (A,) what each has of that

    def of(self, accounts: Ints) -> _Rise:
        return _Rise(*(getattr(self, name)[accounts] for name in self.__slots__))


FAR = np.iinfo(np.int64).max


def part_of(amount: Floats, of: Floats) -> Floats:
    """`amount` / `of`, at most 1; 0 of nothing."""
    found: Floats = np.minimum(np.divide(amount, of, out=np.zeros_like(of), where=of > 0), 1.0)
    return found


def _count(where: Ints, amount: Floats, size: int) -> Floats:
    """(size,) sums of `amount` by `where` it belongs."""
    found: Floats = np.bincount(where, amount, size).astype(np.float64)
    return found


def closed(arcs: Bools, start: Bools) -> Bools:
    """(G, K) `start` and all that is reached from it by `arcs` (G, K, K)."""
    reached = start.copy()
    for _ in range(start.shape[1]):
        further: Bools = reached | (reached[:, :, None] & arcs).any(axis=1)
        if (further == reached).all():
            break
        reached = further
    return reached


def steps_to(arcs: Bools, goal: Bools) -> Ints:
    """(G, K) how many arcs it takes from each generation to one of the `goal`; FAR if there is no way."""
    steps = np.where(goal, 0, FAR)
    for distance in range(1, goal.shape[1]):
        near = steps == distance - 1
        found = (steps == FAR) & (arcs & near[:, None, :]).any(axis=2)
        if not found.any():
            break
        steps[found] = distance
    return steps
