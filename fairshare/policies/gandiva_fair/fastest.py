"""Gives free GPUs to the rows of a network (classes of jobs), on the generations where the rows are fastest."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from fairshare.model import NOWHERE, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps
from fairshare.policies.gandiva_fair.flow import EPSILON
from fairshare.policies.gandiva_fair.gates import Gates
from fairshare.policies.gandiva_fair.network import Network

_SLOWEST = np.int16(-10_000)


def fastest_first(network: Network) -> None:
    """Gives the free GPUs to rows (classes of jobs) that lack GPUs, on their fastest generations, until no row can get
    more.

    If several rows compete for a generation, the rows that gain most by it are served first. Rows that are equally fast
    on several generations are served last. They take GPUs of these generations in proportion to the free GPUs of each.
    """
    flow, left = network.flow, network.left
    rows = np.flatnonzero(flow.unmet > EPSILON * (1 + flow.gpus))
    while True:
        left[left <= network.gates.nothing] = 0.0
        free = network.gates.least_outside(left)
        open_ = flow.able.take(rows, axis=1) & network.gates.rows(rows).before(free > 0)
        lacks = _lacks(network, rows, np.logical_or.reduce(open_))
        goes_on = np.flatnonzero(lacks > EPSILON * (1 + flow.gpus[rows]))
        rows, open_ = rows[goes_on], open_.take(goes_on, axis=1)
        if not len(rows):
            return
        steps = open_steps(flow.step.take(rows, axis=1), open_)
        best = steps.max(axis=0)
        fastest = open_ & (steps == best)
        strict = fastest.sum(axis=0, dtype=np.uint8) == 1
        if strict.any():
            at_best, some = fastest[:, strict], rows[strict]
            gain = best[strict] - open_steps(steps[:, strict], ~at_best).max(axis=0)
            lacks = _lacks(network, rows, strict)[strict]
            takes = at_best * _in_turn(network.gates.rows(some), at_best, lacks, gain, left)
        else:
            gates, some = network.gates.rows(rows), rows
            weight = fastest * gates.before(free)
            lacks = _lacks(network, rows, ~strict)
            takes = gates.cut(weight * (lacks / weight.sum(axis=0)), left)
        flow.held[:, some] += takes
        left -= network.gates.rows(some).sums_outside(takes)


def _lacks(network: Network, rows: Ints, some: Bools) -> Floats:
    """Returns how many more GPUs each of `rows` (R,) can use within the limits, as an array (R,).

    `some` (R,): marks the rows (classes of jobs) that get GPUs. The result is 0 for all other rows. If a limit on a
    group of rows does not suffice for all marked rows of the group, it is divided among them.
    """
    who = np.zeros(len(network.flow.leaf), dtype=bool)
    who[rows[some]] = True
    found: Floats = network.wanted(who)[rows]
    return found


def _in_turn(gates: Gates, at: Bools, lacks: Floats, gain: NDArray[np.number], left: Floats) -> Floats:
    """Divides the GPUs that gates (limits) still allow among C rows (classes of jobs), the largest gain first.

    Each row gets GPUs of one generation only: the fastest for it that has free GPUs. Returns the GPUs that each row
    gets, as an array (C,).

    - `at` (K, C): marks this generation of each row.
    - `lacks` (C,): GPUs that each row lacks.
    - `gain` (C,): how much faster the row is on its marked generation than on the second fastest.
    - `left` (M,): GPUs that each gate still allows.
    """
    takes, where = lacks.copy(), (gates.at * at).sum(axis=0)
    for level in gates.levels[::-1]:
        some = np.flatnonzero(where >= level.start)
        order = some[np.lexsort((-gain[some], where[some]))]
        new = np.flatnonzero(np.diff(where[order], prepend=NOWHERE))
        before = np.cumsum(takes[order]) - takes[order]
        before -= np.repeat(before[new], np.diff(np.append(new, len(order))))
        takes[order] = np.clip(left[where[order]] - before, 0.0, takes[order])
        where[some] = gates.up[where[some]]
    return takes


def upgrade_rows(network: Network) -> None:
    """Moves GPUs of rows (classes of jobs) to generations with free GPUs where the rows are faster."""
    flow, gates = network.flow, network.gates
    left = network.left
    free, is_free = _free(gates, left)
    for to, k in product(range(len(flow.able)), repeat=2):
        if not is_free[to].any():
            continue
        may = is_free[to] & (flow.held[k] > 0) & flow.able[to] & (flow.step[to] > flow.step[k])
        rows = np.flatnonzero(may)
        if len(rows):
            some, moved = gates.rows(rows), np.zeros((len(flow.able), len(rows)))
            moved[to] = flow.held[k, rows]
            moved = some.cut(moved, free)
            moved[k] = -moved[to]
            flow.held[:, rows] += moved
            left -= some.sums_outside(moved)
            free, is_free = _free(gates, left)


def _free(gates: Gates, left: Floats) -> tuple[Floats, Bools]:
    """Returns two arrays: the GPUs that each gate (limit) still allows, and where rows can get free GPUs.

    - The first array (M,) is `left` with 0 in place of negative numbers and of tiny numbers that are rounding errors.
    - The second array (K, C) is a mask: whether each row (class of jobs) can get free GPUs of each generation. It is
      (K, 1) if all rows have the same gates.
    """
    free = np.where(left > gates.nothing, left, 0.0)
    return free, gates.before(gates.least_outside(free) > 0)


def open_steps(step: Steps, open_: Bools) -> Steps:
    """Returns the speeds `step`, but a very low speed on generations that do not count for a row (class of jobs).

    No row is then fastest on such a generation.

    - `step` (K, R): speeds of R rows on each generation, on a logarithmic scale.
    - `open_` (K, R): marks the generations that count for each row.
    """
    found: Steps = step * open_ + _SLOWEST * ~open_
    return found
