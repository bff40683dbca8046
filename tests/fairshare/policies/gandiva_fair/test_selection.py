"""Tests that the selection of jobs keeps its promises in every round and its rules for every single pick."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.model import NOWHERE, Reason, Snapshot
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot, snapshots, with_closed
from tests.fairshare.policies.gandiva_fair.playing import Round, by_hand, decide

EXAMPLES = settings(max_examples=60, deadline=None)


def some_shares(given: Snapshot) -> Shares:
    """Returns equal shares for all accounts. They are enough to test the rules for single picks."""
    leaves = Tree.of(given.accounts.parent).is_leaf[:, None]
    capacity = np.bincount(given.cluster.node_generation, given.cluster.capacity)
    each = np.where(leaves, capacity / max(leaves.sum(), 1), 0.0)
    each = Tree.of(given.accounts.parent).sums(each)
    return Shares(each, each * 0.8, each)


def used_on_nodes(one: Round) -> np.ndarray:
    used = np.zeros(len(one.given.cluster.capacity), dtype=np.int64)
    for job, nodes in one.picks.nodes.items():
        np.add.at(used, nodes, one.given.jobs.gpus[job])
    return used


def over_limits(one: Round, extra: tuple[int, int, int] | None = None) -> bool:
    jobs, accounts = one.given.jobs, one.given.accounts
    used = np.zeros_like(accounts.owed)
    np.add.at(
        used, (jobs.account[one.runs], one.picks.generation[one.runs]), (jobs.workers * jobs.gpus)[one.runs]
    )
    if extra:
        used[extra[0], extra[1]] += extra[2]
    used = Tree.of(accounts.parent).sums(used)
    return bool((used > accounts.cap).any() or (used.sum(axis=1) > accounts.cap_total).any())


@EXAMPLES
@given(snapshots(), st.booleans(), st.integers(0, 3))
def test_gangs_run_whole_within_capacity_and_limits_on_what_they_accept(given, reclaim, seed):
    given = replace(given, settings=replace(given.settings, reclaim=reclaim))
    one = decide(given, some_shares(given), seed=seed)
    assert (used_on_nodes(one) <= given.cluster.capacity).all()
    for job, nodes in one.picks.nodes.items():
        assert len(nodes) == given.jobs.workers[job]
        assert set(given.cluster.node_generation[nodes].tolist()) == {one.picks.generation[job]}
        assert given.jobs.accepts[job, one.picks.generation[job]] or not given.settings.may_preempt
    assert set(one.picks.nodes) == set(one.runs)
    assert not given.settings.may_preempt or not over_limits(one)
    assert not given.settings.may_preempt or not given.jobs.blocked[one.runs].any()
    runs = one.picks.generation != NOWHERE
    assert ((one.picks.reason == Reason.NONE) == runs).all()


@EXAMPLES
@given(snapshots(), st.booleans())
def test_no_gpu_idles_while_a_waiting_gang_that_may_use_it_fits(given, reclaim):
    given = replace(given, settings=replace(given.settings, reclaim=reclaim))
    one = decide(given, some_shares(given))
    free = given.cluster.capacity - used_on_nodes(one)
    for job in np.flatnonzero(one.picks.generation == NOWHERE).tolist():
        workers, gpus = int(given.jobs.workers[job]), int(given.jobs.gpus[job])
        if given.jobs.blocked[job]:
            continue
        for k in np.flatnonzero(given.jobs.accepts[job]).tolist():
            on_k = np.flatnonzero(given.cluster.node_generation == k)
            if not over_limits(one, (int(given.jobs.account[job]), k, workers * gpus)):
                assert int((free[on_k] // gpus).sum()) < workers, f"job {job} fits on generation {k}"


@EXAMPLES
@given(snapshots(may_preempt=False))
def test_a_fill_round_stops_or_moves_no_gang(given):
    one = decide(given, some_shares(given))
    assert one.stops == []
    assert one.moves == []


@EXAMPLES
@given(snapshots(), st.sets(st.integers(0, 8)))
def test_no_gang_starts_on_a_closed_node(given, closed):
    given = with_closed(given, closed)
    one = decide(given, some_shares(given))
    assert (used_on_nodes(one) <= given.cluster.capacity).all()
    for job, nodes in one.picks.nodes.items():
        if given.cluster.closed[nodes].any():
            assert given.jobs.running_on[job] == one.picks.generation[job]
            assert job not in one.moves


def test_gpus_that_a_gang_leaves_on_a_closed_node_stay_free():
    jobs = [Job(0, gpus=4, on=(0,)), Job(0, gpus=4, on=(0,)), Job(1, gpus=4, accepts=(0,))]
    given = snapshot([(0, 8), (0, 8), (1, 8)], [Account(cap={0: 4}), Account()], jobs, trading=False)
    picks = decide(with_closed(given, {0}), by_hand([[4, 4], [0, 0]], [[4, 4], [4, 0]])).picks
    assert [picks.nodes[job].tolist() for job in range(3)] == [[0], [2], [1]]


@EXAMPLES
@given(snapshots())
def test_the_same_seed_gives_the_same_picks(given):
    first, second = (decide(given, some_shares(given), seed=7) for _ in range(2))
    assert first.picks.generation.tolist() == second.picks.generation.tolist()
    assert all((second.picks.nodes[job] == nodes).all() for job, nodes in first.picks.nodes.items())


def test_gpu_hours_that_run_out_within_a_quantum_stop_no_gang_before_its_end():
    """Proves that a gang keeps running until the quantum ends if its account's GPU-hours run out earlier.

    Limits on the number of GPUs still stop a gang immediately.
    """
    given = snapshot([(0, 4)], [Account()], [Job(0, gpus=4, on=(0,)), Job(0)], may_preempt=True)
    spent = replace(given, accounts=replace(given.accounts, room=np.zeros((1, 1))))
    between = replace(spent, settings=replace(spent.settings, reclaim=True))
    assert decide(spent, by_hand([[4.0]])).runs == []
    assert decide(between, by_hand([[4.0]])).runs == [0]
    capped = replace(between, accounts=replace(between.accounts, cap_total=np.array([2.0])))
    assert decide(capped, by_hand([[4.0]])).runs == []
