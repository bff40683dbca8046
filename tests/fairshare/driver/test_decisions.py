"""Tests that every decision keeps the scheduler's rules on every kind of cluster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.codec import encode
from fairshare.entitlement import entitlements
from fairshare.model import NOWHERE, Decision, Reason, Snapshot
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, decide, snapshot, snapshots, used_on_nodes, with_closed
from tests.fairshare.synthetic import synthetic_snapshot

EXAMPLES = settings(max_examples=80, deadline=None)


def over_quota(given: Snapshot, decision: Decision, *, extra: tuple[int, int, int] | None = None) -> bool:
    """Returns whether the decision gives any account more GPUs than its limits allow.

    `extra`: GPUs that an account gets in addition to those of the decision, as (account, generation, GPUs).
    """
    jobs, accounts = given.jobs, given.accounts
    used = np.zeros_like(accounts.owed)
    np.add.at(
        used, (jobs.account[decision.run], decision.generation), (jobs.workers * jobs.gpus)[decision.run]
    )
    if extra:
        used[extra[0], extra[1]] += extra[2]
    used = Tree.of(accounts.parent).sums(used)
    return bool((used > accounts.cap).any() or (used.sum(axis=1) > accounts.cap_total).any())


@EXAMPLES
@given(snapshots())
def test_no_node_gives_out_more_gpus_than_it_has(given):
    decision = decide(given, seed=1)
    assert (used_on_nodes(given, decision) <= given.cluster.capacity).all()


@EXAMPLES
@given(snapshots())
def test_a_gang_runs_whole_on_nodes_of_one_accepted_generation(given):
    decision = decide(given, seed=1)
    assert len(set(decision.run.tolist())) == len(decision.run)
    for p, job in enumerate(decision.run.tolist()):
        place = decision.place_node[decision.place_start[p] : decision.place_start[p + 1]]
        assert len(place) == given.jobs.workers[job]
        assert set(given.cluster.node_generation[place].tolist()) == {decision.generation[p]}
        assert given.jobs.accepts[job, decision.generation[p]]


@EXAMPLES
@given(snapshots(may_preempt=True))
def test_no_limit_is_exceeded_and_no_blocked_job_runs(given):
    decision = decide(given, seed=1)
    assert not over_quota(given, decision)
    assert not given.jobs.blocked[decision.run].any()


@EXAMPLES
@given(snapshots())
def test_no_gpu_idles_while_a_waiting_gang_that_may_use_it_fits(given):
    decision = decide(given, seed=1)
    free = given.cluster.capacity - used_on_nodes(given, decision)
    for job in np.flatnonzero(decision.reason != Reason.NONE).tolist():
        workers, gpus = int(given.jobs.workers[job]), int(given.jobs.gpus[job])
        if given.jobs.blocked[job]:
            continue
        for k in np.flatnonzero(given.jobs.accepts[job]).tolist():
            on_k = np.flatnonzero(given.cluster.node_generation == k)
            extra = (int(given.jobs.account[job]), k, workers * gpus)
            if not over_quota(given, decision, extra=extra):
                assert int((free[on_k] // gpus).sum()) < workers, f"job {job} fits on generation {k}"


@EXAMPLES
@given(snapshots(may_preempt=False))
def test_a_fill_round_stops_no_gang(given):
    decision = decide(given, seed=1)
    running = np.flatnonzero(given.jobs.running_on != NOWHERE).tolist()
    for job in running:
        start, end = given.jobs.place_start[job : job + 2]
        p = decision.run.tolist().index(job)
        now = decision.place_node[decision.place_start[p] : decision.place_start[p + 1]]
        assert now.tolist() == given.jobs.place_node[start:end].tolist()


@EXAMPLES
@given(snapshots(), st.sets(st.integers(0, 8)))
def test_no_gang_starts_on_a_closed_node(given, closed):
    given = with_closed(given, closed)
    decision, jobs = decide(given, seed=1), given.jobs
    assert (used_on_nodes(given, decision) <= given.cluster.capacity).all()
    for p, job in enumerate(decision.run.tolist()):
        place = decision.place_node[decision.place_start[p] : decision.place_start[p + 1]]
        home = jobs.place_node[jobs.place_start[job] : jobs.place_start[job + 1]]
        if given.cluster.closed[place].any():
            assert jobs.running_on[job] == decision.generation[p]
            assert place.tolist() == home.tolist()


@EXAMPLES
@given(snapshots())
def test_every_job_runs_or_has_a_reason(given):
    decision = decide(given, seed=1)
    runs = np.zeros(len(given.jobs), dtype=bool)
    runs[decision.run] = True
    assert ((decision.reason == Reason.NONE) == runs).all()


@EXAMPLES
@given(snapshots())
def test_shares_stay_within_capacity_and_entitlements_sum_to_it(given):
    decision = decide(given, seed=1)
    tree = Tree.of(given.accounts.parent)
    capacity = np.bincount(given.cluster.node_generation, given.cluster.capacity)
    leaves = decision.share[tree.is_leaf].sum(axis=0)
    assert (decision.share >= 0).all()
    assert (leaves <= capacity + 1e-6).all()
    assert decision.share[tree.roots].sum(axis=0) == pytest.approx(leaves, abs=1e-6)
    entitled = entitlements(given)[tree.roots].sum(axis=0)
    assert ((entitled == pytest.approx(capacity)) | (entitled == 0)).all() or entitled == pytest.approx(
        np.where(entitled > 0, capacity, 0)
    )


@EXAMPLES
@given(snapshots())
def test_the_same_seed_gives_the_same_decision_to_the_last_bit(given):
    assert encode(decide(given, seed=7)) == encode(decide(given, seed=7))


def test_empty_clusters_and_empty_queues_decide_nothing():
    assert len(decide(snapshot([(0, 4)], [Account()], []), seed=0).run) == 0
    assert len(decide(snapshot([(0, 4)], [], []), seed=0).run) == 0
    without_nodes = decide(snapshot([], [Account()], [Job(0)]), seed=0)
    assert without_nodes.reason.tolist() == [Reason.NEVER_NO_SUCH_GENERATION]


def test_a_tree_with_children_before_parents_is_refused():
    given = snapshot([(0, 4)], [Account(parent=1), Account()], [Job(0)])
    with pytest.raises(ValueError, match="before its parent"):
        decide(given, seed=0)


def test_a_large_cluster_is_packed_to_the_last_gpu():
    given = synthetic_snapshot(1000, 10, 20, seed=5)
    decision = decide(given, seed=0)
    assert (used_on_nodes(given, decision) == given.cluster.capacity).all()
    assert not over_quota(given, decision)
