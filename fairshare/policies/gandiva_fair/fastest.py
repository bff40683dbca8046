"""Rows take what a network leaves where they are fastest."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from fairshare.model import NOWHERE, Bools, Floats, Ints
from fairshare.policies.gandiva_fair.classes import Steps
from fairshare.policies.gandiva_fair.columns import across, anywhere, count, highest
from fairshare.policies.gandiva_fair.flow import EPSILON
from fairshare.policies.gandiva_fair.gates import Gates
from fairshare.policies.gandiva_fair.network import Network

_SLOWEST = np.int16(-10_000)


def fastest_first(network: Network) -> None:
    """Each row that lacks takes where it is fastest of what is left there, again and again; who gains most goes first.

    Rows that are equally fast on several generations wait until no other wants any, and take in proportion.
    """
    flow, left = network.flow, network.left
    rows = np.flatnonzero(flow.unmet > EPSILON * (1 + flow.gpus))
    while True:
        left[left <= network.gates.nothing] = 0.0
        free = network.gates.least_outside(left)
        open_ = flow.able.take(rows, axis=0) & (free > 0)[network.gates.at.take(rows, axis=0)]
        goes_on = np.flatnonzero(_lacks(network, rows, anywhere(open_)) > EPSILON * (1 + flow.gpus[rows]))
        rows, open_ = rows[goes_on], open_.take(goes_on, axis=0)
        if not len(rows):
            return
        steps = open_steps(flow.step.take(rows, axis=0), open_)
        best = highest(steps)
        fastest = open_ & (steps == best[:, None])
        strict = count(fastest) == 1
        if strict.any():
            at_best, some = fastest[strict], rows[strict]
            gain = best[strict] - highest(open_steps(steps[strict], ~at_best))
            lacks = _lacks(network, rows, strict)[strict]
            takes = at_best * _in_turn(network.gates.rows(some), at_best, lacks, gain, left)[:, None]
        else:
            gates, some = network.gates.rows(rows), rows
            weight = fastest * free[gates.at]
            lacks = _lacks(network, rows, ~strict)
            takes = gates.cut(weight * (lacks / across(weight))[:, None], left)
        flow.held[some] += takes
        left -= network.gates.rows(some).sums_outside(takes)


def _lacks(network: Network, rows: Ints, some: Bools) -> Floats:
    """(R,) GPUs that some (R,) of the `rows` (R,) lack, if no others are to have more."""
    who = np.zeros(len(network.flow.leaf), dtype=bool)
    who[rows[some]] = True
    found: Floats = network.wanted(who)[rows]
    return found


def _in_turn(gates: Gates, at: Bools, lacks: Floats, gain: NDArray[np.number], left: Floats) -> Floats:
    """(C,) what rows that go to one generation each (C, K) get of what is `left` (M,), who gains most first."""
    takes, where = lacks.copy(), gates.at[at]
    for level in gates.levels[::-1]:
        some = np.flatnonzero(where >= level.start)
        order = some[np.lexsort((-gain[some], where[some]))]
        new = np.flatnonzero(np.diff(where[order], prepend=NOWHERE))
        before = np.cumsum(takes[order]) - takes[order]
        before -= np.repeat(before[new], np.diff(np.append(new, len(order))))
        takes[order] = np.clip(left[where[order]] - before, 0.0, takes[order])
        where[some] = gates.up[where[some]]
    return takes


def speed_up(network: Network) -> None:
    """Who runs faster on GPUs that nobody wants goes there."""
    flow, gates = network.flow, network.gates
    left = np.maximum(network.left, 0.0)
    for to, k in product(range(flow.able.shape[1]), repeat=2):
        left[left <= gates.nothing] = 0.0
        is_free = gates.least_outside(left)[gates.at[:, to]] > 0
        rows = np.flatnonzero(
            is_free & (flow.held[:, k] > 0) & flow.able[:, to] & (flow.step[:, to] > flow.step[:, k])
        )
        if len(rows):
            some, moved = gates.rows(rows), np.zeros((len(rows), flow.able.shape[1]))
            moved[:, to] = flow.held[rows, k]
            moved = some.cut(moved, left)
            moved[:, k] = -moved[:, to]
            flow.held[rows] += moved
            left = np.maximum(network.left, 0.0)


def open_steps(step: Steps, open_: Bools) -> Steps:
    """(R, K) the `step` where a row is `open_`, and elsewhere less than any."""
    found: Steps = step * open_ + _SLOWEST * ~open_
    return found
