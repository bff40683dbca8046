"""Tests that tickets determine entitlements, and that accounts can use GPUs that others leave unused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.check.generate import random_economy
from fairshare.check.oracle import Oracle
from fairshare.demand import demand_rank, room, take
from fairshare.entitlement import capacity_of, entitlements
from fairshare.model import Reason
from fairshare.reasons import may_run
from fairshare.tree import Tree
from tests.fairshare.build import INF, Account, Job, decide, snapshot, snapshots

EXAMPLES = settings(max_examples=60, deadline=None)


def many(account, *, count=40, accepts=None, **rest):
    return [Job(account, accepts=accepts, **rest) for _ in range(count)]


def without_quotas(given):
    quotas = {name: np.full_like(getattr(given.accounts, name), np.inf) for name in ("cap", "cap_total")}
    return replace(given, accounts=replace(given.accounts, **quotas))


def test_shares_follow_tickets_on_every_generation():
    accounts = [Account(1), Account(2), Account(4)]
    jobs = [job for t in range(3) for job in many(t)]
    given = snapshot([(0, 7), (1, 14)], accounts, jobs)
    assert entitlements(given) == pytest.approx(np.array([[1, 2], [2, 4], [4, 8]]))
    assert decide(given, seed=0).share == pytest.approx(entitlements(given))


def test_entitlements_cover_every_generation_and_only_accounts_with_jobs_count():
    """Proves that only accounts with jobs are entitled, and that they are entitled to a part of every generation.

    The third account has the most tickets but no jobs. Each of the other two is entitled to half of each generation,
    although the second cannot use generation 0. In the decision, the first gets all of generation 0, and the second
    gets all of generation 1.
    """
    accounts = [Account(1), Account(1), Account(7)]
    jobs = [*many(0), *many(1, accepts=(1,))]
    given = snapshot([(0, 8), (1, 8)], accounts, jobs)
    assert entitlements(given) == pytest.approx(np.array([[4, 4], [4, 4], [0, 0]]))
    assert decide(given, seed=0).share == pytest.approx(np.array([[8, 0], [0, 8], [0, 0]]), abs=1e-6)


def test_what_an_account_cannot_use_goes_to_its_siblings_first():
    # There are two organisations. One of the two teams of the first organisation wants only one GPU.
    accounts = [Account(1), Account(1), Account(1, parent=0), Account(1, parent=0)]
    jobs = [*many(2, count=1), *many(3), *many(1)]
    given = snapshot([(0, 8)], accounts, jobs)
    assert entitlements(given)[:, 0] == pytest.approx([4, 4, 2, 2])
    assert decide(given, seed=0).share[:, 0] == pytest.approx([4, 4, 1, 3])


def test_what_no_sibling_can_use_goes_to_other_families():
    accounts = [Account(1), Account(1), Account(1, parent=0), Account(1, parent=0)]
    jobs = [*many(2, count=1), *many(3, count=1), *many(1)]
    decision = decide(snapshot([(0, 8)], accounts, jobs), seed=0)
    assert decision.share[:, 0] == pytest.approx([2, 6, 1, 1])


def test_limits_cap_shares_and_the_rest_goes_to_others():
    accounts = [Account(1, cap={0: 1}, cap_total=3), Account(1)]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, [*many(0), *many(1)]), seed=0)
    assert decision.share.sum(axis=1) == pytest.approx([3, 13])
    assert decision.share[0, 0] <= 1 + 1e-6
    assert decision.share.sum(axis=0) == pytest.approx([8, 8])


def test_a_job_that_accepts_two_generations_counts_once():
    accounts = [Account(1), Account(1)]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, [*many(0, count=4), *many(1)]), seed=0)
    assert decision.share[0].sum() == pytest.approx(4)
    assert decision.share[1].sum() == pytest.approx(12)


def test_an_account_with_few_jobs_keeps_its_part_of_their_fast_generation():
    accounts = [Account(1), Account(1)]
    jobs = [*many(0, count=4, rate={0: 1.0, 1: 3.0}), *many(1)]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, jobs, trading=False), seed=0)
    assert decision.share == pytest.approx(np.array([[0, 4], [8, 4]]))


def test_an_account_without_measurements_gets_some_of_each_generation_that_it_may_use():
    accounts = [Account(1), Account(1)]
    jobs = [*many(0, count=4), *many(1, rate={0: 1.0, 1: 3.0})]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, jobs, trading=False), seed=0)
    assert decision.share == pytest.approx(np.array([[2, 2], [6, 6]]))


@EXAMPLES
@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_an_entitlement_is_the_private_cluster_of_the_oracle(seed, number):
    economy = random_economy(seed, number)
    active = [j for j in economy.active(0) if economy.able[j].any()]
    view = economy.snapshot(active, {}, {}, {}, {})
    assert entitlements(view) == pytest.approx(Oracle(economy, active).entitled, abs=1e-6)


def test_only_a_leaf_that_takes_part_and_may_run_within_limits_is_active():
    accounts = [Account() for _ in range(5)]
    jobs = [Job(0), Job(1, preemptible=True), Job(2, blocked=Reason.CLUSTER_PAUSED), Job(3, gpus=9)]
    given = snapshot([(0, 8)], accounts, [*jobs, Job(4)])
    assert entitlements(given)[:, 0].tolist() == [4, 0, 0, 0, 4]
    claims = replace(given.accounts, claim_total=np.array([INF, INF, INF, INF, 0]))
    assert entitlements(replace(given, accounts=claims))[:, 0].tolist() == [8, 0, 0, 0, 0]


@EXAMPLES
@given(snapshots(trading=False))
def test_every_account_gets_what_it_can_use_of_its_entitlement(given):
    """Proves that sharing costs no account anything: each leaf gets at least the GPUs that it could use of its
    entitlement."""
    given = without_quotas(given)
    decision = decide(given, seed=0)
    tree = Tree.of(given.accounts.parent)
    able, _ = may_run(given, tree)
    rank = demand_rank(tree, given.accounts, given.jobs, given.jobs.sharing(able))
    leaves = np.flatnonzero(tree.is_leaf)
    entitled = entitlements(given)[leaves]
    alone = take(rank[leaves], np.zeros_like(entitled), entitled, np.zeros(entitled.shape, dtype=np.int64))
    assert (decision.share[leaves].sum(axis=1) >= alone.sum(axis=1) - 1e-6).all()


@EXAMPLES
@given(snapshots(trading=False))
def test_a_generation_is_left_over_only_if_no_account_can_use_it(given):
    """Proves that GPUs of a generation stay unassigned only if no account can use them.

    The accounts have no limits on GPUs, and no job has measured speeds.
    """
    # With measured speeds, the policy could guarantee an account GPUs of a faster generation.
    given = replace(
        without_quotas(given),
        jobs=replace(given.jobs, rate=np.full_like(given.jobs.rate, np.nan)),
    )
    decision = decide(given, seed=0)
    tree = Tree.of(given.accounts.parent)
    able, _ = may_run(given, tree)
    rank = demand_rank(tree, given.accounts, given.jobs, given.jobs.sharing(able))
    left = capacity_of(given.cluster) - decision.share[tree.roots].sum(axis=0)
    for k in np.flatnonzero(left > 1e-6).tolist():
        more = np.eye(len(left))[k]
        for leaf in np.flatnonzero(tree.is_leaf).tolist():
            path = tree.path(leaf)
            assert min(room(rank[t], decision.share[t], more) for t in path) < 1e-6


@EXAMPLES
@given(snapshots())
def test_no_share_is_more_than_can_be_used(given):
    decision = decide(given, seed=0)
    tree = Tree.of(given.accounts.parent)
    able, _ = may_run(given, tree)
    rank = demand_rank(tree, given.accounts, given.jobs, given.jobs.sharing(able))
    kinds = decision.share.shape[1]
    for bits in range(1, 1 << kinds):
        inside = [k for k in range(kinds) if bits >> k & 1]
        assert (decision.share[:, inside].sum(axis=1) <= rank[:, bits] + 1e-6).all()
