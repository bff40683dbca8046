"""A pool of GPUs and rows that may use it, within groups that nest: as much for all together as can be, exactly.

Who gets how much is a flow from groups over classes of jobs to generations. A pool has few generations and many
classes; so the residual graph is kept on generations alone, its arcs being what all classes together could move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.columns import across, anywhere, down
from fairshare.policies.gandiva_fair.flow import (
    EPSILON,
    FAR,
    SPREADS,
    Flow,
    closed,
    part_of,
    steps_to,
)


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows side by side that belong together, and how many GPUs all of them may have."""

    of_row: Ints  # (C,) number of its group
    first: Ints  # (N,) row
    most: Floats  # (N,)
    least: Floats  # (N,)

    @classmethod
    def of(cls, owner: Ints, most: Floats) -> Groups:
        """Rows with one `owner` (C,), of which each may have as much as `most` (T,) says, are a group."""
        new = np.diff(owner, prepend=owner[:1] - 1) != 0
        first = np.flatnonzero(new)
        return cls(np.cumsum(new) - 1, first, most[owner[first]], np.zeros(len(first)))

    def sums(self, values: Floats) -> Floats:
        """(N, …) over the rows of each group."""
        found: Floats = np.add.reduceat(values, self.first, axis=0)
        return found

    def room(self, held: Floats) -> Floats:
        """(N,) GPUs that each group may have beside `held` (C, K)."""
        left = self.most - self.sums(across(held))
        return np.where(left > EPSILON, left, 0.0)

    def spare(self, held: Floats) -> Floats:
        """(N,) GPUs that each group may give up of `held` (C, K)."""
        left = self.sums(across(held)) - self.least
        return np.where(left > EPSILON, left, 0.0)

    def cut(self, values: Floats, most: Floats) -> Floats:
        """The values (C, n), of each column no more in all than `most` (N,) of each group."""
        found: Floats = values * part_of(most[:, None], self.sums(values))[self.of_row]
        return found


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows of one group may change places: one gives up a generation, another takes as much of a different one."""

    groups: Groups
    takers: Sequence[
        Groups
    ] = ()  # groups inside, the innermost first, that can take no more than they have room for
    givers: Sequence[Groups] = ()  # groups inside that can give up no more than they can spare


class Network:
    """GPUs of K generations, and the rows that share them."""

    def __init__(self, flow: Flow, gpus: Floats, bounds: Sequence[Groups]) -> None:
        """`gpus` (K,) is what there is. `bounds` nest, the innermost first.

        Rows of a leaf are side by side, and so are those of each group. What leaves have for sure they keep.
        """
        self.flow, self.gpus, self.bounds = flow, gpus, tuple(bounds)
        leaves = Groups.of(flow.leaf, np.full(flow.leaf.max(initial=0) + 1, np.inf))
        self.leaves = replace(leaves, least=leaves.sums(across(flow.sure)))
        self._nothing = EPSILON * float(1.0 + gpus.sum())

    @property
    def load(self) -> Floats:
        """(K,) GPUs that are given."""
        return down(self.flow.held)

    def fill(self) -> None:
        """Give out as many GPUs as the rows can use within all bounds, beside what they have."""
        if (self.gpus - self.load <= self._nothing).all():
            return
        self._grow(self._wanted()[:, 0])
        self._fit()

    def exchanges(self) -> list[Exchange]:
        """Within which groups rows may change places."""
        inside = [Exchange(groups, self.bounds[:at], [self.leaves]) for at, groups in enumerate(self.bounds)]
        return [Exchange(self.leaves), *inside]

    @property
    def _free(self) -> Floats:
        """(C, K) what rows may give up, as far as their leaf keeps what is guaranteed."""
        found: Floats = self.flow.held * ~self.flow.is_kept[:, None]
        return found

    @property
    def _more(self) -> Floats:
        """(C, K) what rows have beyond what their leaf is guaranteed, in proportion to what they have."""
        free, leaves = self._free, self.leaves
        part = part_of(leaves.spare(self.flow.held), leaves.sums(across(free)))
        found: Floats = free * part[leaves.of_row][:, None]
        return found

    def _wanted(self, able: Bools | None = None) -> Floats:
        """(C, 1) GPUs that rows lack within the bounds, or (C, K) of each generation where they are `able`."""
        wanted = self.flow.unmet[:, None] * (1.0 if able is None else able)
        for groups in self.bounds:
            wanted = groups.cut(wanted, groups.room(self.flow.held))
        return wanted

    def _grow(self, gets: Floats) -> None:
        """Give each row as many GPUs (C,), on generations in proportion to what is left."""
        rows = np.flatnonzero(gets > 0)
        if not len(rows):
            return
        able, gets = self.flow.able.take(rows, axis=0), gets[rows, None]
        left = np.maximum(self.gpus - self.load, 0.0) + self._nothing
        pull = left.copy()
        for _ in range(SPREADS):
            weight = able * pull
            spread = weight * (gets / across(weight)[:, None])
            pull = pull * np.clip(left / (down(spread) + self._nothing), 1e-3, 1e3)
            pull = np.maximum(pull / pull.max(), 1e-30)
        self.flow.held[rows] += spread

    def _fit(self) -> None:
        """Take back what is too much: where it is, or where what is guaranteed has to make room for others'."""
        while (full := self._balance()).any():
            before = self.load
            over = np.where(full, np.maximum(before - self.gpus, 0.0), 0.0)
            for k in np.flatnonzero(full).tolist():
                self._give_back(k, float(over[k]))
            for k in np.flatnonzero(full).tolist():
                self._give_back(k, float((over - before + self.load).sum()))
            if (before - self.load).sum() <= EPSILON:  # what is rounded away cannot be freed
                break

    def _give_back(self, k: int, over: float) -> None:
        """Take back so much of a generation, or what there is."""
        gives = self.leaves.cut(self._free[:, [k]], self.leaves.spare(self.flow.held))[:, 0]
        total = gives.sum()
        if total > 0:
            self.flow.held[:, k] -= gives * min(max(over, 0.0) / total, 1.0)

    def _balance(self) -> Bools:
        """Move what overloads a generation to others, as far as there is a way.

        Returns (K,) the generations that are reached from an overloaded one, all of them full: where too much is
        asked for.
        """
        while True:
            spare = self.gpus - self.load
            over = spare < -self._nothing
            if not over.any():
                return over
            arcs = self._arcs()
            steps = steps_to(arcs[None], spare[None] > self._nothing)[0]
            may_go = over & (steps < FAR)
            if not may_go.any() or not self._push(steps, may_go):
                return np.asarray(closed(arcs[None], over[None])[0])

    def _push(self, steps: Ints, over: Bools) -> bool:
        """One pass of moves down the `steps` (K,) to what is free; returns whether anything moved."""
        moved = False
        for far in range(int(steps[over].max()), 0, -1):
            for k in np.flatnonzero(steps == far).tolist():
                for to in np.flatnonzero(steps == far - 1).tolist():
                    spare = self.gpus - self.load
                    want = -spare[k] if far > 1 else min(-spare[k], spare[to])
                    if want > self._nothing / 4:
                        moved |= self._move(k, to, float(want)) > 0
        return moved

    def _move(self, k: int, to: int, want: float) -> float:
        """Move `want` GPUs or what there is of them from one generation to another; returns how much.

        A row moves what it holds, or rows exchange.
        """
        held = self.flow.held
        movable = held[:, k] * self.flow.able[:, to]
        total = float(movable.sum())
        if total > 0:
            moved = movable * min(want / total, 1.0)
            held[:, k] -= moved
            held[:, to] += moved
        total = min(total, want)
        for exchange in self.exchanges()[::-1]:
            if want - total > self._nothing / 4:
                total += self._exchange(exchange, k, to, want - total)
        return total

    def _exchange(self, exchange: Exchange, k: int, to: int, want: float) -> float:
        """Let rows give up some of one generation for others that lack on another; returns how much."""
        gives, takes = self._offers(exchange, slice(k, k + 1), slice(to, to + 1))
        groups = exchange.groups
        drop, room = groups.sums(gives), groups.sums(takes)
        swap = np.minimum(drop, room)
        total = float(swap.sum())
        if total <= 0:
            return 0.0
        swap *= min(want / total, 1.0)
        self.flow.held[:, k] -= (gives * part_of(swap, drop)[groups.of_row])[:, 0]
        self.flow.held[:, to] += (takes * part_of(swap, room)[groups.of_row])[:, 0]
        return min(total, want)

    def _offers(self, exchange: Exchange, k: slice, to: slice) -> tuple[Floats, Floats]:
        """(C, …) what rows may give up of the generations `k`, and what they may take of the generations `to`."""
        held = self.flow.held
        gives = self._free[:, k]
        for groups in exchange.givers:
            gives = groups.cut(gives, groups.spare(held))
        takes = self.flow.unmet[:, None] * self.flow.able[:, to]
        for groups in exchange.takers:
            takes = groups.cut(takes, groups.room(held))
        return gives, takes

    def _arcs(self) -> Bools:
        """(K, K) whether some of a generation could move to another."""
        rows = np.flatnonzero(anywhere(self.flow.held > 0))
        held, able = self.flow.held.take(rows, axis=0), self.flow.able.take(rows, axis=0)
        found = np.array([down(held[:, [k]] * able) for k in range(held.shape[1])])
        everything = slice(None)
        for exchange in self.exchanges():
            gives, takes = self._offers(exchange, everything, everything)
            drop, room = exchange.groups.sums(gives), exchange.groups.sums(takes)
            for k in range(len(found)):
                found[k] += np.minimum(drop[:, [k]], room).sum(axis=0)
        arcs: Bools = found > self._nothing
        np.fill_diagonal(arcs, val=False)
        return arcs
