"""Tests that Room, which stores nodes by their number of free GPUs, gives the same answers as a plain array of
nodes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairshare.model import Ints
from fairshare.placement import fit
from fairshare.policies.gandiva_fair.room import Room, in_order

GPUS = st.lists(st.integers(-2, 9), min_size=1, max_size=12)
CHANGES = st.lists(st.tuples(st.integers(0, 11), st.integers(-4, 4)), max_size=12)


def changed(gpus: list[int], changes: list[tuple[int, int]]) -> tuple[Room, np.ndarray]:
    """Returns the free GPUs of all nodes after some changes, twice: as a Room and as an array.

    `gpus`: the free GPUs of each node before the changes. A change (node, GPUs) adds the GPUs, which may be negative,
    to the node's free GPUs.
    """
    room, array = Room(np.array(gpus)), np.array(gpus)
    for node, more in changes:
        room.add(node % len(gpus), more)
        array[node % len(gpus)] += more
    return room, array


def as_list(nodes: Ints | None) -> list[int] | None:
    return None if nodes is None else nodes.tolist()


@given(GPUS, CHANGES, st.integers(1, 6), st.integers(1, 9), st.sets(st.integers(0, 11)))
def test_a_gang_gets_the_nodes_that_an_exhaustive_search_finds(
    gpus: list[int], changes: list[tuple[int, int]], workers: int, each: int, without: set[int]
) -> None:
    room, array = changed(gpus, changes)
    assert room.nodes_for(workers, each) == as_list(fit(array, workers, each))
    others = np.where(np.isin(np.arange(len(array)), list(without)), 0, array)
    among = ~sum(1 << node for node in without)
    assert room.nodes_for(workers, each, among) == as_list(fit(others, workers, each))


@given(GPUS, CHANGES, st.integers(1, 9), st.integers(0))
def test_workers_are_counted_on_nodes_that_have_enough(
    gpus: list[int], changes: list[tuple[int, int]], each: int, among: int
) -> None:
    room, array = changed(gpus, changes)
    slots = np.maximum(array // each, 0)
    assert room.slots(each) == slots.sum()
    assert room.slots_among(among, each) == sum(slots[node] for node in in_order(among % 2 ** len(array)))
    assert list(in_order(room.at_least(each))) == np.flatnonzero(array >= each).tolist()


@given(GPUS, st.lists(st.integers(0, 6), min_size=12, max_size=12), st.integers(1, 9))
def test_nodes_that_lack_least_for_a_worker_come_first(gpus: list[int], taken: list[int], each: int) -> None:
    free = np.maximum(gpus, 0)
    capacity = free + taken[: len(free)]
    lacks = each - free % each
    found = list(Room(free).nearest(each, Room(capacity)))
    possible = [node for node in range(len(free)) if free[node] + lacks[node] <= capacity[node]]
    assert [node for node, _ in found] == sorted(possible, key=lambda node: lacks[node])
    assert [target for _, target in found] == [free[node] + lacks[node] for node, _ in found]
