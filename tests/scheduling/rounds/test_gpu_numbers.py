"""Gangs get the GPUs of their frozen processes, and leave those of other gangs alone while other GPUs will do."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.rounds.gpu_numbers import GpuNumbers, NoGpus

SIZE = 4  # GPUs of a node
GPUS = st.tuples(st.integers(0, 1), st.integers(0, SIZE - 1))
FORMER = st.dictionaries(st.integers(0, 5), st.sets(GPUS, min_size=1, max_size=3), max_size=5)
ASKED = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(1, 3)), max_size=5)


@given(st.sets(GPUS), st.sets(GPUS), FORMER, ASKED)
def test_gangs_get_their_own_gpus_first_and_those_of_others_last(open_, busy, former, asked):
    numbers = GpuNumbers({node: {n for at, n in open_ if at == node} for node in (0, 1)}, busy, former)
    left = set(open_)
    for job, node, gpus in asked:
        here, own = {gpu for gpu in left if gpu[0] == node}, former.get(job, set())
        others = set(chain.from_iterable(its for other, its in former.items() if other != job))
        if len(here) < gpus:
            with pytest.raises(NoGpus):
                numbers.take(job, [node], gpus)
            continue
        taken = numbers.take(job, [node], gpus)
        got = {gpu for _, gpu in taken}
        assert [rank for rank, _ in taken] == [0] * gpus
        assert len(got) == gpus
        assert got <= here
        assert len(got & own) == min(gpus, len(here & own))
        more = gpus - len(got & own)  # GPUs beside its own
        assert len(got - own - others) == min(more, len(here - own - others))
        if more and not here & others:
            assert len(got - own - busy) == min(more, len(here - own - busy))
        left -= got


def test_a_gang_of_several_nodes_that_lacks_gpus_takes_none():
    numbers = GpuNumbers({0: {0, 1}, 1: {0}}, (), {7: [(0, 1)]})
    with pytest.raises(NoGpus) as lack:
        numbers.take(7, [0, 1, 1], 1)
    assert (lack.value.node, lack.value.wanted) == (1, 2)
    assert numbers.open == {0: {0, 1}, 1: {0}}
    assert numbers.take(7, [0, 1], 1) == [(0, (0, 1)), (1, (1, 0))]
    with pytest.raises(NoGpus):
        numbers.take(7, [5], 1)
