"""Gives free GPUs of a flow network to its rows, greedily, on the generations where the rows are fastest.

A *row* is a class of similar jobs, or the guarantee of a class. A *gate* is a limit on the GPUs of one generation for a
group of rows. Gates are nested like the accounts.

Sizes of arrays: C rows of the network, R rows of a selection of them, K generations, M gates.
"""

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
    """Gives free GPUs to rows that can use more GPUs, each on its fastest generation with free GPUs, until no row can
    get more. Rows lose no GPUs.

    If several rows want the same generation, the rows that gain most speed by it come first. Rows with several equally
    fast generations come last: they get GPUs of all of these, in proportion to the free GPUs.
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
            takes = at_best * _divide_by_gain(network.gates.rows(some), at_best, lacks, gain, left)
        else:
            gates, some = network.gates.rows(rows), rows
            weight = fastest * gates.before(free)
            lacks = _lacks(network, rows, ~strict)
            takes = gates.cut(weight * (lacks / weight.sum(axis=0)), left)
        flow.held[:, some] += takes
        left -= network.gates.rows(some).sums_outside(takes)


def _lacks(network: Network, rows: Ints, served: Bools) -> Floats:
    """Returns how many more GPUs each of `rows` (R,) can use within the limits of its accounts, as an array (R,).

    `served` (R,): marks the rows that get GPUs now. All other rows get 0 in the result. If the limit of an account is
    too low for all of its marked rows, it is divided among them.
    """
    who = np.zeros(len(network.flow.leaf), dtype=bool)
    who[rows[served]] = True
    found: Floats = network.wanted(who)[rows]
    return found


def _divide_by_gain(gates: Gates, at: Bools, lacks: Floats, gain: NDArray[np.number], left: Floats) -> Floats:
    """Divides free GPUs among R rows, those with the largest gain first. Returns the GPUs that each row gets, as an
    array (R,).

    - `gates`: limits on single generations, which no row may exceed.
    - `at` (K, R): marks the one generation on which each row gets GPUs.
    - `lacks` (R,): the most GPUs that each row can use.
    - `gain` (R,): how much faster the row is on this generation than on its second fastest one, in steps of 5%.
    - `left` (M,): GPUs that each gate still lets through.
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
    """Moves GPUs of rows (classes of jobs) to generations that have free GPUs and on which the row is faster.

    The total GPUs of each row stay the same.
    """
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
    """Returns two arrays: the free GPUs of each gate, and which rows can get free GPUs.

    - (M,): `left`, with 0 in place of rounding errors and of negative numbers.
    - (K, C): a mask, whether each row can get free GPUs of each generation. It is (K, 1) if all rows have the same
      gates.
    """
    free = np.where(left > gates.nothing, left, 0.0)
    return free, gates.before(gates.least_outside(free) > 0)


def open_steps(step: Steps, open_: Bools) -> Steps:
    """Returns `step` with a very low speed wherever `open_` is False, as an array (K, R). The fastest generation of a
    row is then one that is open to it.

    - `step` (K, R): the speed of each of R rows on each generation. One step up is 5% faster.
    - `open_` (K, R): marks the generations that are open to each row.
    """
    found: Steps = step * open_ + _SLOWEST * ~open_
    return found
