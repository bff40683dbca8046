"""Divides pools of GPUs exactly among rows (classes of jobs) within nested limits, so that all rows together get as
many GPUs as possible.

The division is a network flow. Each unit of flow passes through nested groups of rows, then through one row, then
through nested gates. A group bounds the total GPUs of its rows. A gate is a limit on a single generation.

At first too many GPUs are given out. The excess at overloaded gates is then moved to other gates along shortest paths
of the residual graph. All paths of the same length are used together (blocking flows, Dinic 1970). Only gates are nodes
of this graph. An arc leads from one gate to another. It stands for all GPUs that rows, or pairs of rows in a group,
could move from the first gate to the second. Excess that cannot be moved is behind a minimum cut and is taken back.
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
    """N groups of adjacent rows (classes of jobs). Each group has a lower and an upper bound on the total GPUs of its
    rows."""

    of_row: Ints  # (C,) number of each row's group
    first: Ints  # (N,) first row of each group
    most: Floats  # (N,) most GPUs of each group
    least: Floats  # (N,) GPUs that each group keeps

    @classmethod
    def of(cls, owner: Ints, most: Floats) -> Groups:
        """Returns groups of adjacent rows (classes of jobs) with the same owner, without lower bounds.

        `owner` (C,): the owner of each row. `most` (T,): the upper bound of each owner, in GPUs.
        """
        new = np.diff(owner, prepend=owner[:1] - 1) != 0
        first = np.flatnonzero(new)
        return cls(np.cumsum(new) - 1, first, most[owner[first]], np.zeros(len(first)))

    def of_rows(self, rows: Ints) -> Groups:
        """Returns the groups that consist of the given rows (classes of jobs).

        The rows must include either all rows of a group or none of them.
        """
        which = self.of_row[rows]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        kept = which[first]
        return Groups(
            np.cumsum(np.diff(which, prepend=-1) != 0) - 1, first, self.most[kept], self.least[kept]
        )

    def sums(self, values: Floats) -> Floats:
        """Returns the sum of `values` (…, C) over the rows (classes of jobs) of each group, as an array (…, N)."""
        found: Floats = np.add.reduceat(values, self.first, axis=-1)
        return found

    def room(self, has: Floats) -> Floats:
        """Returns the GPUs that each group may still get, as an array (N,). `has` (C,): total GPUs of each row (class
        of jobs)."""
        left = self.most - self.sums(has)
        return np.where(left > EPSILON, left, 0.0)

    def spare(self, has: Floats) -> Floats:
        """Returns the GPUs that each group may give up, as an array (N,). `has` (C,): total GPUs of each row (class of
        jobs)."""
        left = self.sums(has) - self.least
        return np.where(left > EPSILON, left, 0.0)

    def part(self, amounts: Floats, most: Floats) -> Floats:
        """Returns factors that reduce the amounts of rows (classes of jobs) to what each group allows.

        The result is an array (C,): a factor of at most 1 for each row, the same for all rows of a group.

        `amounts` (C,): the amount of each row. `most` (N,): the limit on the sum of the reduced amounts of each group.
        """
        found: Floats = part_of(most, self.sums(amounts))[self.of_row]
        return found


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kind of move in the network between rows (classes of jobs) of one group.

    One row gives up GPUs of one generation, and the same or another row gets as many GPUs of another generation.
    """

    groups: Groups
    # Groups nested inside `groups`, the innermost first, whose bounds the move must keep. None: each row exchanges only
    # with itself.
    inside: Sequence[Groups] | None


class Network:
    """A network flow of GPUs: rows (classes of jobs) that share the GPUs of gates (limits), with bounds on the totals
    of groups of rows."""

    def __init__(self, flow: Flow, gates: Gates, bounds: Sequence[Groups]) -> None:
        """Creates the network. `bounds` are nested groups of rows (classes of jobs), the innermost first.

        Rows of a group must be adjacent and already hold the group's lower bound.
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
        """Returns the capacity that each gate (limit) has left, in GPUs, as an array (M,). A negative number means
        overload."""
        found: Floats = self.gates.most - self.gates.through(self.flow.held)
        return found

    def fill(self) -> None:
        """Gives rows (classes of jobs) as many additional GPUs as they can use within all bounds."""
        before, again = -np.inf, bool(self.may_have_more().any())
        while again and self.flow.held.sum() > before + EPSILON:
            before = self.flow.held.sum()
            self._grow(self.wanted())
            again = self._fit() and bool(self.may_have_more().any())

    def spread(self) -> None:
        """Gives out the free GPUs of each pool to its rows (classes of jobs), in proportion to the GPUs that each row
        lacks.

        It makes only one pass, which may leave some GPUs free.
        """
        if not self.may_have_more().any():
            return
        gates, wanted = self.gates, self.wanted()
        left = np.where(gates.up == NOWHERE, np.maximum(self.left, 0.0), 0.0)
        lacks = np.bincount(gates.pool, wanted, int(gates.pool_of.max(initial=0)) + 1).astype(np.float64)
        self._grow(wanted * part_of(gates.by_pool(left), lacks)[gates.pool])
        self._fit()

    def may_have_more(self) -> Bools:
        """Returns the rows (classes of jobs) that may get more GPUs if free GPUs are divided again, as a mask (C,).

        Rows share pools of GPUs. All rows of a pool are marked if some row of the pool lacks GPUs, and some row of the
        pool could use free GPUs. These can be two different rows, because rows can exchange GPUs.
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
        """Returns the possible kinds of exchanges of GPUs in the network.

        In the first kind, each row (class of jobs) exchanges GPUs of one generation for GPUs of another. In the other
        kinds, rows of one group exchange GPUs with each other. The innermost groups come first.
        """
        rows = np.arange(len(self.flow.leaf))
        alone = Exchange(Groups.of(rows, np.zeros(len(rows))), None)
        return [alone, *(Exchange(groups, self.bounds[:at]) for at, groups in enumerate(self.bounds))]

    @property
    def free(self) -> Floats:
        """Returns the GPUs that each row holds and that may be moved, by generation, as an array (K, C).

        A row is a class of jobs, or the guarantee of a class. All GPUs of a class may be moved, and none of a
        guarantee. The lower bounds of groups are not considered here.
        """
        found: Floats = self.flow.held * self._moves
        return found

    def _spare(self, where: Bools | None = None) -> Floats:
        """Returns the GPUs of each generation that each row (class of jobs) can give up, as an array (K, C).

        The groups of the row keep their lower bounds. With `where` (K, C), only GPUs at the marked pairs of a
        generation and a row count.
        """
        return self._within(self.bounds, self.free if where is None else self.free * where)

    def _within(self, groups: Sequence[Groups], gives: Floats) -> Floats:
        """Returns `gives` (K, C), the GPUs that rows (classes of jobs) offer to give up, reduced to what all of
        `groups` can spare."""
        has, amount, part = self.flow.held.sum(axis=0), gives.sum(axis=0), np.ones(gives.shape[1])
        for some in groups:
            part = part * some.part(amount * part, some.spare(has))
        return gives * part

    def wanted(self, who: Bools | None = None) -> Floats:
        """Returns how many more GPUs each row (class of jobs) can use within the upper bounds of its groups, as an
        array (C,).

        The GPUs that a group may still get are divided among its rows, in proportion to the GPUs that the rows can use.

        `who` (C,): marks the rows that take part in this division, by default all. The result is 0 for all other rows.
        """
        has = self.flow.held.sum(axis=0)
        wanted = self.flow.beside(has) if who is None else self.flow.beside(has) * who
        return self._within_room(self.bounds, wanted, has)

    @staticmethod
    def _within_room(bounds: Sequence[Groups], wanted: Floats, has: Floats) -> Floats:
        """Returns `wanted` (C,), the additional GPUs of rows (classes of jobs), reduced so that no group exceeds its
        upper bound.

        `has` (C,): GPUs that each row already holds.
        """
        for groups in bounds:
            wanted = wanted * groups.part(wanted, groups.room(has))
        return wanted

    def _grow(self, gets: Floats) -> None:
        """Gives each row (class of jobs) `gets` (C,) additional GPUs, spread over its generations in proportion to free
        GPUs."""
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
        """Takes GPUs back from rows (classes of jobs) until no gate (limit) is overloaded.

        Rows behind an overloaded gate lose GPUs first. If they cannot give up any, rows behind other gates lose
        GPUs: gates to which GPUs could be moved from the overloaded gate.

        Returns True if rows behind other gates lost GPUs. More GPUs than necessary may then have been taken back.
        """
        gates, elsewhere = self.gates, False
        while (stuck := self._balance()).any():
            while (gives := self._too_much()).sum() > EPSILON:
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

    def _too_much(self) -> Floats:
        """Returns the GPUs that rows (classes of jobs) can give up to relieve overloaded gates (limits), as an array
        (K, C)."""
        gates, over = self.gates, np.maximum(-self.left, 0.0)
        more = self._spare(gates.before(gates.least_outside(np.where(over > 0, 0.0, 1.0)) < 1))
        stays = 1.0 - part_of(over, gates.sums_outside(more))
        for level in gates.levels[1:]:
            stays[level] *= stays[gates.up[level]]
        found: Floats = more * gates.before(1.0 - stays)
        return found

    def _balance(self) -> Bools:
        """Moves GPUs of rows (classes of jobs) from overloaded gates to gates with free capacity, as far as possible.

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
        """Returns the gates (limits) marked in `over` (M,), and all gates to which load of the marked gates could move.

        The result is a mask (M,). The load of a gate is the GPUs of rows (classes of jobs) that count against it.
        """
        return _Residual.of(self, self.left).reached_from(over)

    def _push(self, steps: Ints, far: int) -> None:
        """Moves GPUs of rows (classes of jobs) once along all shortest paths from overloaded gates (limits) to gates
        with free capacity.

        `steps` (M,): the distance of each gate from the nearest gate with free capacity. `far`: the greatest distance
        from which GPUs are moved.
        """
        gates, passed_on = self.gates, np.zeros(len(steps))
        for here in range(far, 0, -1):
            left = self.left
            presses = np.where(steps == here, np.maximum(-left, 0.0) + passed_on, 0.0)
            presses[presses <= gates.nothing / 4] = 0.0
            takes = np.where(steps == here - 1, np.inf if here > 1 else np.maximum(left, 0.0), 0.0)
            alone, *others = self.exchanges()
            for exchange in [alone, *others[::-1]]:
                if not (presses > gates.nothing / 4).any():
                    break
                self._move(exchange, presses, takes)
            # What could not be moved now is passed on to inner gates nearer to a free gate: they have to move it.
            inside = np.flatnonzero((gates.up != NOWHERE) & (steps == here - 1))
            inside = inside[presses[gates.up[inside]] > 0]
            through = (gates.most - np.maximum(left, 0.0))[inside]
            asked = np.bincount(gates.up[inside], through, len(left)).astype(np.float64)
            passed_on = np.zeros(len(left))
            passed_on[inside] = through * part_of(presses, asked)[gates.up[inside]]

    def _move(self, exchange: Exchange, presses: Floats, takes: Floats) -> None:
        """Moves load (GPUs of rows) between gates (limits) by one kind of exchange.

        `presses` (M,): GPUs that should leave each gate. `takes` (M,): GPUs that each gate can accept. The GPUs that
        were moved are subtracted from both arrays.
        """
        gates, groups = self.gates, exchange.groups
        weight = gates.before(np.where(np.isfinite(takes), takes, 1.0))
        gives, gets = self.offers(exchange, gates.before(presses > 0), weight)
        gives *= groups.part(gives.sum(axis=0), groups.sums(gets.sum(axis=0)))
        gives *= gates.before(part_of(presses, gates.sums(gives)))
        gets *= groups.part(gets.sum(axis=0), groups.sums(gives.sum(axis=0)))
        gets *= gates.before(part_of(takes, gates.sums(gets)))
        gives *= groups.part(gives.sum(axis=0), groups.sums(gets.sum(axis=0)))
        self.flow.held += gets - gives
        presses -= np.minimum(gates.sums(gives), presses)
        takes -= np.where(np.isfinite(takes), np.minimum(gates.sums(gets), takes), 0.0)

    def offers(
        self, exchange: Exchange, where: Bools | None = None, weight: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Returns two arrays (K, C): the GPUs that each row (class of jobs) could give up in the exchange, and the GPUs
        that it could get.

        - `where` (K, C): marks the generations on which each row may give up GPUs, by default all.
        - `weight` (K, C): how the GPUs that a row could get are spread over its generations, by default evenly.
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
        gives = self._within(exchange.inside, self.free if where is None else self.free * where)
        has = held.sum(axis=0)
        gets = self._within_room(exchange.inside, flow.beside(has) * (share > 0).any(axis=0), has)
        return gives, share * gets


def _one_over(values: Floats) -> Floats:
    """Returns 1 divided by each value, but 0 where the value is 0."""
    found: Floats = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    return found


@dataclass(frozen=True, slots=True)
class _Residual:
    """The residual graph of the flow. Its nodes are gates (limits). An arc says that load could move from one gate to
    another.

    The load of a gate is the GPUs of rows (classes of jobs) that count against it.
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
        """Returns the distance in arcs from each gate to the nearest free gate, as an array (M,).

        `free` marks outermost gates with free capacity. The search ends when it has reached all gates marked in `start`
        (M,). Gates that it has not reached get FAR.
        """
        steps = np.full(len(start), FAR)
        steps[: len(free)][free] = 0
        for here in range(1, len(start)):
            found = self._beside(steps == here - 1, back=True) & (steps == FAR)
            steps[found] = here
            if not found.any() or (steps[start] < FAR).all():
                break
        return steps

    def reached_from(self, start: Bools) -> Bools:
        """Returns the gates (limits) marked in `start` (M,), and all gates to which load of the marked gates could
        move.

        The result is a mask (M,). Load may move over any number of arcs.
        """
        reached = start.copy()
        while True:
            further = reached | self._beside(reached, back=False)
            if (further == reached).all():
                return reached
            reached = further

    def _beside(self, marks: Bools, *, back: bool) -> Bools:
        """Returns the gates (limits) to which the gates marked in `marks` (M,) could move load over one arc, as a mask
        (M,).

        If `back` is true, returns the gates that could move load to the marked gates.
        """
        gates = self.gates
        found = np.zeros(len(marks))
        for groups, gives, gets in self.offers:
            out, into = (gets, gives) if back else (gives, gets)
            total = groups.sums((out * gates.before(marks)).sum(axis=0))
            found += gates.sums(np.minimum(into, total[groups.of_row]))
        beside: Bools = found > gates.nothing
        inner = np.flatnonzero(gates.up != NOWHERE)
        passes_more, passes = (
            self.left[inner] > gates.nothing[inner],
            self.left[inner] < (gates.most - gates.nothing)[inner],
        )
        outwards, inwards = (passes, passes_more) if back else (passes_more, passes)
        beside[gates.up[inner[outwards & marks[inner]]]] = True
        beside[inner[inwards & marks[gates.up[inner]]]] = True
        return beside
