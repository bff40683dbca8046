"""Divides GPUs among accounts as a maximum flow: all consumers together get as many GPUs as possible within nested
limits.

A consumer is called a *row*. It is usually a class, which means similar jobs of one leaf account. A class can have
additional rows, which receive only its guaranteed GPUs (`flow.py`). There are two kinds of limits:

- A *gate* is the most GPUs of one generation that a set of rows may hold together (`gates.py`). These rows are *behind*
  the gate. The outermost gates are the GPUs of a *pool*, which are divided among the rows of the pool.
- A *group* is a set of rows with bounds on their total GPUs over all generations, for example the rows of one account.

The algorithm is:
1. Rows get GPUs even if gates become overloaded.
2. The excess is moved to gates with free capacity, along shortest paths in a residual graph (blocking flows, Dinic
   1970).
3. What cannot be moved is taken back from rows.

The nodes of the residual graph are the gates. An arc from one gate to another means that GPUs behind the first can be
exchanged for GPUs behind the second: by one row that is behind both, or between two rows of one group. The gates that
can be reached from a gate whose excess cannot be moved are a minimum cut: a bottleneck that limits the total of all
rows.

Sizes of arrays: C rows, K generations, M gates, N groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow, part_of
from fairshare.policies.gandiva_fair.gates import Gates

FAR = np.iinfo(np.int64).max
_SPREADS = 6  # passes that bring a first guess close to the capacity
_ENOUGH = 1 / 16  # least progress that is worth another pass, as a multiple of a rounding error


@dataclass(frozen=True, slots=True)
class Groups:
    """N groups of rows. Each row is in one group, and the rows of a group are adjacent.

    Each group has a lower and an upper bound on the total GPUs of its rows, over all generations. A group usually
    consists of the rows of one account.
    """

    of_row: Ints  # (C,) number of each row's group
    first: Ints  # (N,) first row of each group
    most: Floats  # (N,) most GPUs of each group
    least: Floats  # (N,) GPUs that each group keeps

    @classmethod
    def of(cls, owner: Ints, most: Floats) -> Groups:
        """Returns one group for each owner of rows, such as an account. The lower bounds are 0.

        - `owner` (C,): the index of each row's owner. Rows of one owner must be adjacent.
        - `most` (T,): the upper bound of each owner, in GPUs.
        """
        new = np.diff(owner, prepend=owner[:1] - 1) != 0
        first = np.flatnonzero(new)
        return cls(np.cumsum(new) - 1, first, most[owner[first]], np.zeros(len(first)))

    def of_rows(self, rows: Ints) -> Groups:
        """Returns these groups for a network that contains only the rows with the indices in `rows`.

        Groups without rows are left out. `rows` must contain all rows of a group, or none of them.
        """
        which = self.of_row[rows]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        kept = which[first]
        return Groups(
            np.cumsum(np.diff(which, prepend=-1) != 0) - 1, first, self.most[kept], self.least[kept]
        )

    def sums(self, values: Floats) -> Floats:
        """Returns the sum of `values` (…, C) over the rows of each group, as an array (…, N)."""
        found: Floats = np.add.reduceat(values, self.first, axis=-1)
        return found

    def room(self, has: Floats) -> Floats:
        """Returns how many more GPUs each group may get until it reaches its upper bound, as an array (N,).

        `has` (C,): the total GPUs of each row.
        """
        left = self.most - self.sums(has)
        return np.where(left > EPSILON, left, 0.0)

    def spare(self, has: Floats) -> Floats:
        """Returns how many GPUs each group may give up until it reaches its lower bound, as an array (N,).

        `has` (C,): the total GPUs of each row.
        """
        left = self.sums(has) - self.least
        return np.where(left > EPSILON, left, 0.0)

    def part(self, amounts: Floats, most: Floats) -> Floats:
        """Returns a factor for each row, as an array (C,). With these factors, the amounts of each group's rows add up
        to at most `most`.

        All rows of a group have the same factor, which is at most 1. For example, rows with the amounts 3 and 1 and a
        limit of 2 both get the factor 0.5.

        - `amounts` (C,): the amount of each row.
        - `most` (N,): the limit on the sum of amounts of each group.
        """
        found: Floats = part_of(most, self.sums(amounts))[self.of_row]
        return found


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kind of exchange of GPUs. The total GPUs of each group in `groups` stay the same.

    Either a row exchanges GPUs of one generation for as many of another, or a row gives up GPUs and another row of its
    group gets as many.
    """

    groups: Groups
    # Groups nested inside `groups`, the innermost first, whose bounds the move must keep. None: each row exchanges only
    # with itself.
    inside: Sequence[Groups] | None


class Network:
    """A network flow that divides GPUs among rows, within capacities of single generations and bounds of groups.

    The capacities are the M gates in `gates`. The groups in `bounds` limit the total GPUs of rows. The methods change
    the GPUs that rows hold (`flow.held`) in place.
    """

    def __init__(self, flow: Flow, gates: Gates, bounds: Sequence[Groups]) -> None:
        """Creates the network for the rows of `flow`.

        `bounds`: the groups of each level of nesting, the innermost level first. At the start, each group must already
        hold at least its lower bound.
        """
        self.flow, self.gates, self.bounds = flow, gates, tuple(bounds)

    # As floats, because these are multiplied several times as fast as booleans.
    @cached_property
    def _able(self) -> Floats:
        return self.flow.able.astype(np.float64)

    @cached_property
    def _moves(self) -> Floats:
        return (~self.flow.is_kept).astype(np.float64)

    @cached_property
    def _evenly(self) -> Floats:
        return self._able * _one_over(self._able.sum(axis=0))

    @property
    def left(self) -> Floats:
        """Returns the free capacity of each gate in GPUs, as an array (M,). It is negative for an overloaded gate."""
        found: Floats = self.gates.most - self.gates.through(self.flow.held)
        return found

    def fill(self) -> None:
        """Gives all rows together as many additional GPUs as possible, within the capacities of gates and the bounds of
        groups.

        Single rows can lose GPUs, but each group keeps at least its lower bound.
        """
        before, again = -np.inf, bool(self.may_have_more().any())
        while again and self.flow.held.sum() > before + EPSILON:
            before = self.flow.held.sum()
            self._grow(self.wanted())
            again = self._fit() and bool(self.may_have_more().any())

    def spread(self) -> None:
        """Gives the free GPUs of each pool to its rows, in proportion to the additional GPUs that each row can use.

        Some GPUs that rows could use may stay free. `fill` gives them out.
        """
        if not self.may_have_more().any():
            return
        gates, wanted = self.gates, self.wanted()
        left = np.where(gates.up == NOWHERE, np.maximum(self.left, 0.0), 0.0)
        lacks = np.bincount(gates.pool, wanted, int(gates.pool_of.max(initial=0)) + 1).astype(np.float64)
        self._grow(wanted * part_of(gates.by_pool(left), lacks)[gates.pool])
        self._fit()

    def may_have_more(self) -> Bools:
        """Returns the rows that might get more GPUs if GPUs were divided again, as a mask (C,).

        These are all rows of each pool in which some row lacks GPUs and some row could use free GPUs. If these are two
        different rows, the second can take the free GPUs and give other GPUs to the first.
        """
        gates = self.gates
        left = gates.least_outside(self.left) > gates.nothing
        open_ = (gates.before(left) & self.flow.able).any(axis=0)
        lacks = self.flow.unmet > EPSILON
        pools = np.zeros(int(gates.pool_of.max(initial=0)) + 1, dtype=np.uint8)
        pools[gates.pool[open_]] |= 1
        pools[gates.pool[lacks]] |= 2
        found: Bools = (pools == 3)[gates.pool]
        return found

    def exchanges(self) -> list[Exchange]:
        """Returns the kinds of exchanges that are possible in this network.

        In the first kind, each row exchanges GPUs of one generation for GPUs of another. Then follows one kind for each
        level of groups, the innermost level first. In these kinds, rows of one group exchange GPUs with each other.
        """
        rows = np.arange(len(self.flow.leaf))
        alone = Exchange(Groups.of(rows, np.zeros(len(rows))), None)
        return [alone, *(Exchange(groups, self.bounds[:at]) for at, groups in enumerate(self.bounds))]

    @property
    def removable(self) -> Floats:
        """Returns the GPUs of each generation that may be taken from each row and given to others, as an array (K, C).

        These are all GPUs of a class of jobs, and no GPUs of a row that consists of guaranteed GPUs. Bounds of groups
        are ignored.
        """
        found: Floats = self.flow.held * self._moves
        return found

    def _spare(self, where: Bools | None = None) -> Floats:
        """Returns the GPUs of each generation that each row can give up, as an array (K, C).

        If all rows give up these GPUs together, each group still keeps its lower bound.

        `where` (K, C): marks the generations on which each row may give up GPUs, by default all.
        """
        return self._within_lower_bounds(
            self.bounds, self.removable if where is None else self.removable * where
        )

    def _within_lower_bounds(self, groups: Sequence[Groups], gives: Floats) -> Floats:
        """Returns the GPUs in `gives`, reduced so that no group falls below its lower bound, as an array (K, C).

        - `groups`: the groups of each level, the innermost level first.
        - `gives` (K, C): GPUs of each generation that each row offers to give up.
        """
        has, amount, part = self.flow.held.sum(axis=0), gives.sum(axis=0), np.ones(gives.shape[1])
        for some in groups:
            part = part * some.part(amount * part, some.spare(has))
        return gives * part

    def wanted(self, who: Bools | None = None) -> Floats:
        """Returns how many more GPUs each row can get within the upper bounds of its groups, as an array (C,). Gates
        are ignored.

        If the rows of a group can use more than its upper bound allows, their numbers are multiplied by the same
        factor.

        `who` (C,): marks the rows that may get GPUs, by default all. The result is 0 for all other rows.
        """
        has = self.flow.held.sum(axis=0)
        wanted = self.flow.unmet_beyond(has) if who is None else self.flow.unmet_beyond(has) * who
        return self._within_upper_bounds(self.bounds, wanted, has)

    @staticmethod
    def _within_upper_bounds(bounds: Sequence[Groups], wanted: Floats, has: Floats) -> Floats:
        """Returns the GPUs in `wanted`, reduced so that no group exceeds its upper bound, as an array (C,).

        - `bounds`: the groups of each level, the innermost level first.
        - `wanted` (C,): additional GPUs that each row wants.
        - `has` (C,): GPUs that each row already holds.
        """
        for groups in bounds:
            wanted = wanted * groups.part(wanted, groups.room(has))
        return wanted

    def _grow(self, gets: Floats) -> None:
        """Gives each row `gets` (C,) additional GPUs, even if gates become overloaded.

        The GPUs of a row are spread over the generations that it accepts. Generations with more free GPUs get a larger
        part.
        """
        rows = np.flatnonzero(gets > 0)
        if not len(rows):
            return
        able, gets, gates = self.flow.able.take(rows, axis=1), gets[rows], self.gates.rows(rows)
        left = np.maximum(self.left, 0.0) + gates.nothing
        pull = gates.least_outside(left)
        for _ in range(_SPREADS):
            weight = able * gates.before(pull)
            spread = weight * (gets / weight.sum(axis=0))
            fits = left / (gates.through(spread) + gates.nothing)
            pull = np.maximum(pull * np.clip(gates.least_outside(fits), 1e-3, 1e3), 1e-30)
        self.flow.held[:, rows] += spread

    def _fit(self) -> bool:
        """Changes the GPUs that rows hold until no gate is overloaded.

        The steps are:
        1. Moves GPUs from overloaded gates to other gates, as far as possible.
        2. Takes the rest back from rows behind overloaded gates.
        3. If these rows can give up no more, takes GPUs back from rows behind gates to which the excess could be moved.

        Returns whether step 3 was necessary. It can take back more GPUs than necessary.
        """
        gates, elsewhere = self.gates, False
        while (stuck := self._balance()).any():
            while (gives := self._excess()).sum() > EPSILON:
                self.flow.held -= gives
                stuck[:] = False
            if stuck.any():
                more = self._spare(gates.before(self._reached(stuck)))
                over = gates.by_pool(np.maximum(-self.left, 0.0))
                gives = more * part_of(over, gates.by_pool(gates.sums(more)))[gates.pool]
                self.flow.held, elsewhere = self.flow.held - gives, True
                if gives.sum() <= EPSILON:  # rounding errors cannot be freed
                    break
        return elsewhere

    def _excess(self) -> Floats:
        """Returns the GPUs of each generation to take back from rows behind overloaded gates, as an array (K, C).

        No group of these rows falls below its lower bound. The result can therefore be less than the overload.
        """
        gates, over = self.gates, np.maximum(-self.left, 0.0)
        more = self._spare(gates.before(gates.least_outside(np.where(over > 0, 0.0, 1.0)) < 1))
        stays = 1.0 - part_of(over, gates.sums_outside(more))
        for level in gates.levels[1:]:
            stays[level] *= stays[gates.up[level]]
        found: Floats = more * gates.before(1.0 - stays)
        return found

    def _balance(self) -> Bools:
        """Moves GPUs from overloaded gates to gates with free capacity by exchanges between rows, as far as possible.

        Returns the gates that remain overloaded, as a mask (M,).
        """
        nothing, before = self.gates.nothing, np.inf
        while True:
            left = self.left
            over, much = left < -nothing, float((np.maximum(-left, 0.0) / nothing).sum())
            free = left[self.gates.levels[0]] > nothing[self.gates.levels[0]]
            if not over.any() or not free.any() or much > before - _ENOUGH:
                return over
            steps = _Residual.of(self, left).steps_to(free, over)
            may_go = over & (steps < FAR)
            if not may_go.any():
                return over
            before = much
            self._push(steps, int(steps[may_go].max()))

    def _reached(self, over: Bools) -> Bools:
        """Returns the gates in `over`, and all gates to which their GPUs could be moved by exchanges between rows, as a
        mask (M,).

        `over` (M,): marks the gates at which the search starts.
        """
        return _Residual.of(self, self.left).reached_from(over)

    def _push(self, steps: Ints, far: int) -> None:
        """Moves GPUs from overloaded gates to gates with free capacity, along all shortest paths of the residual graph
        together (one phase of Dinic's algorithm).

        - `steps` (M,): the number of arcs on the shortest path from each gate to a gate with free capacity.
        - `far`: the largest of these numbers for an overloaded gate that has such a path.
        """
        gates, passed_on = self.gates, np.zeros(len(steps))
        for here in range(far, 0, -1):
            left = self.left
            excess = np.where(steps == here, np.maximum(-left, 0.0) + passed_on, 0.0)
            excess[excess <= gates.nothing / 4] = 0.0
            accepts = np.where(steps == here - 1, np.inf if here > 1 else np.maximum(left, 0.0), 0.0)
            alone, *others = self.exchanges()
            for exchange in [alone, *others[::-1]]:
                if not (excess > gates.nothing / 4).any():
                    break
                self._move(exchange, excess, accepts)
            # What could not be moved now is passed on to inner gates nearer to a free gate: they have to move it.
            inside = np.flatnonzero((gates.up != NOWHERE) & (steps == here - 1))
            inside = inside[excess[gates.up[inside]] > 0]
            through = (gates.most - np.maximum(left, 0.0))[inside]
            asked = np.bincount(gates.up[inside], through, len(left)).astype(np.float64)
            passed_on = np.zeros(len(left))
            passed_on[inside] = through * part_of(excess, asked)[gates.up[inside]]

    def _move(self, exchange: Exchange, excess: Floats, accepts: Floats) -> None:
        """Moves GPUs from gates with excess to gates that accept GPUs, by one kind of exchange between rows.

        - `excess` (M,): GPUs that should leave each gate.
        - `accepts` (M,): GPUs that each gate can accept, infinite if there is no limit.

        The GPUs that were moved are subtracted from both arrays, in place.
        """
        gates, groups = self.gates, exchange.groups
        weight = gates.before(np.where(np.isfinite(accepts), accepts, 1.0))
        gives, gets = self.offers(exchange, gates.before(excess > 0), weight)
        gives *= groups.part(gives.sum(axis=0), groups.sums(gets.sum(axis=0)))
        gives *= gates.before(part_of(excess, gates.sums(gives)))
        gets *= groups.part(gets.sum(axis=0), groups.sums(gives.sum(axis=0)))
        gets *= gates.before(part_of(accepts, gates.sums(gets)))
        gives *= groups.part(gives.sum(axis=0), groups.sums(gets.sum(axis=0)))
        self.flow.held += gets - gives
        excess -= np.minimum(gates.sums(gives), excess)
        accepts -= np.where(np.isfinite(accepts), np.minimum(gates.sums(gets), accepts), 0.0)

    def offers(
        self, exchange: Exchange, where: Bools | None = None, weight: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Returns the most GPUs that rows can give up, and the most that they can get, in one kind of exchange.

        The result is two arrays (K, C), with GPUs of each generation for each row. Their sums can differ.

        - `where` (K, C): marks the generations on which each row may give up GPUs, by default all.
        - `weight` (K, C): in which proportions a row gets GPUs of the generations that it accepts, by default equally.
        """
        flow, held = self.flow, self.flow.held
        if weight is None:
            share = self._evenly
        else:
            weight = weight * self._able
            share = weight * _one_over(weight.sum(axis=0))
        if exchange.inside is None:
            gives = held if where is None else held * where
            return gives, share * gives.sum(axis=0)
        gives = self._within_lower_bounds(
            exchange.inside, self.removable if where is None else self.removable * where
        )
        has = held.sum(axis=0)
        gets = self._within_upper_bounds(
            exchange.inside, flow.unmet_beyond(has) * (share > 0).any(axis=0), has
        )
        return gives, share * gets


def _one_over(values: Floats) -> Floats:
    """Returns 1 divided by each value, or 0 where the value is 0."""
    found: Floats = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    return found


@dataclass(frozen=True, slots=True)
class _Residual:
    """The residual graph of a network flow. Its nodes are the M gates.

    An arc from one gate to another says that load can be moved from the first to the second. The load of a gate is the
    GPUs that rows behind it hold. There are also arcs between a gate and the next gate outside it.
    """

    gates: Gates
    left: Floats  # (M,)
    # for each kind of exchange, the groups and the GPUs (K, C) that their rows may give up, and take
    offers: Sequence[tuple[Groups, Floats, Floats]]

    @classmethod
    def of(cls, network: Network, left: Floats) -> _Residual:
        offers = [(exchange.groups, *network.offers(exchange)) for exchange in network.exchanges()]
        return cls(network.gates, left, offers)

    def steps_to(self, free: Bools, start: Bools) -> Ints:
        """Returns the number of arcs on the shortest path from each gate to a gate with free capacity, as an array
        (M,).

        The number is FAR if no path was found. The search stops as soon as all gates in `start` have a path.

        - `free`: marks the outermost gates that have free capacity. It has one entry for each outermost gate.
        - `start` (M,): marks the gates for which the caller needs the number.
        """
        steps = np.full(len(start), FAR)
        steps[: len(free)][free] = 0
        for here in range(1, len(start)):
            found = self._neighbours(steps == here - 1, back=True) & (steps == FAR)
            steps[found] = here
            if not found.any() or (steps[start] < FAR).all():
                break
        return steps

    def reached_from(self, start: Bools) -> Bools:
        """Returns the gates in `start` and all gates to which a path leads from them, as a mask (M,).

        `start` (M,): marks the gates at which the search starts.
        """
        reached = start.copy()
        while True:
            further = reached | self._neighbours(reached, back=False)
            if (further == reached).all():
                return reached
            reached = further

    def _neighbours(self, marks: Bools, *, back: bool) -> Bools:
        """Returns the gates to which an arc leads from a marked gate, as a mask (M,).

        - `marks` (M,): the marked gates.
        - `back`: if true, returns the gates from which an arc leads to a marked gate.
        """
        gates = self.gates
        found = np.zeros(len(marks))
        for groups, gives, gets in self.offers:
            out, into = (gets, gives) if back else (gives, gets)
            total = groups.sums((out * gates.before(marks)).sum(axis=0))
            found += gates.sums(np.minimum(into, total[groups.of_row]))
        beside: Bools = found > gates.nothing
        # Rows behind an inner gate also load the next gate outside it.
        inner = np.flatnonzero(gates.up != NOWHERE)
        passes_more, passes = (
            self.left[inner] > gates.nothing[inner],
            self.left[inner] < (gates.most - gates.nothing)[inner],
        )
        outwards, inwards = (passes, passes_more) if back else (passes_more, passes)
        beside[gates.up[inner[outwards & marks[inner]]]] = True
        beside[inner[inwards & marks[gates.up[inner]]]] = True
        return beside
