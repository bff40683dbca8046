"""Tests that shares give each account the right amount of GPU time on the right generations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.check.generate import Maker, mixed
from fairshare.check.oracle import Oracle
from fairshare.model import Snapshot
from fairshare.policies.gandiva_fair.classes import classes_of
from fairshare.policies.gandiva_fair.shares import Shares, share_out
from fairshare.reasons import may_run
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot, snapshots

EXAMPLES = settings(max_examples=80, deadline=None)


def shares(view: Snapshot) -> Shares:
    tree = Tree.of(view.accounts.parent)
    return share_out(view, tree, view.jobs.sharing(may_run(view, tree)[0]))


def is_about(rows: list[list[float]]) -> object:
    return pytest.approx(np.array(rows), abs=1e-6)


def test_accounts_that_can_use_others_leave_a_generation_to_those_that_cannot():
    view = snapshot([(0, 1), (1, 1)], [Account(), Account()], [Job(0), Job(1, accepts=(1,))])
    assert shares(view).share == is_about([[1, 0], [0, 1]])


def test_only_gangs_of_one_shape_are_alike_however_many_shapes_there_are():
    view = snapshot([(0, 1_000_003)], [Account()], [Job(0)])
    gpus = np.arange(2, 70_000)
    every, one = np.ones(len(gpus), dtype=np.int64), np.zeros(len(gpus), dtype=np.int64)
    jobs = replace(view.jobs, account=one, workers=every, gpus=gpus, rate=np.full((len(gpus), 1), np.nan))
    found = classes_of(jobs, np.ones((len(gpus), 1), dtype=bool), view.cluster)
    assert sorted(found.gpus) == gpus.tolist()


def test_max_min_compares_totals_over_all_generations():
    jobs = [*(Job(0) for _ in range(10)), Job(1, accepts=(1,))]
    view = snapshot([(0, 9), (1, 1)], [Account(), Account()], jobs)
    assert shares(view).share == is_about([[9, 0], [0, 1]])


def test_no_account_is_locked_out_of_a_generation_it_is_entitled_to():
    jobs = [Job(0, gpus=8, rate={0: 1.0, 1: 4.0}), Job(1, gpus=8, accepts=(1,))]
    found = shares(snapshot([(0, 8), (1, 8)], [Account(100), Account(1)], jobs))
    fast, rest = 800 / 101, 8 / 101
    assert found.guaranteed == is_about([[rest, fast], [0, rest]])
    assert found.share == is_about([[rest, fast], [0, rest]])


def test_the_job_that_gains_most_keeps_its_generation_however_much_others_want():
    jobs = [
        *[Job(0, rate={0: 1.0, 1: 9.0})] * 4,
        *[Job(0, rate={0: 1.0, 1: 1.0})] * 4,
        *[Job(1, accepts=(1,))] * 4,
    ]
    found = shares(snapshot([(0, 2), (1, 2)], [Account(), Account()], jobs))
    assert found.share == is_about([[2, 1], [0, 1]])


def test_what_one_user_leaves_goes_to_its_team_first():
    accounts = [Account(), Account(), Account(parent=0), Account(parent=0), Account(parent=1)]
    jobs = [Job(2), *(Job(t) for t in (3, 4) for _ in range(12))]
    found = shares(snapshot([(0, 8)], accounts, jobs))
    assert found.guaranteed[:, 0] == pytest.approx([4, 4, 1, 2, 4])
    assert found.share[:, 0] == pytest.approx([4, 4, 1, 3, 4])


def test_a_team_keeps_the_progress_its_jobs_make_by_yielding_to_each_other():
    accounts = [Account(), Account(), Account(parent=0), Account(parent=1), Account(parent=1)]
    jobs = [Job(3), *[Job(2, accepts=(0,))] * 7, Job(4, accepts=(0,))]
    found = shares(snapshot([(0, 2), (1, 2)], accounts, jobs))
    assert found.guaranteed[:2] == is_about([[1, 0], [1, 1]])
    assert found.share == is_about([[1, 0], [1, 1], [1, 0], [0, 1], [1, 0]])


def test_a_user_that_frees_no_scarce_gpus_loses_nothing_to_its_team():
    accounts = [Account(), Account(parent=0), Account(tickets=100, parent=0), Account()]
    jobs = [
        Job(1),
        Job(2, gpus=5, accepts=(0, 1)),
        Job(2, gpus=9, accepts=(0,)),
        Job(3, gpus=10, accepts=(0,)),
    ]
    found = shares(snapshot([(0, 16), (1, 8), (2, 6), (3, 2)], accounts, jobs))
    assert found.share.sum(axis=1) == pytest.approx([13, 1, 12, 9], abs=1e-6)


def test_an_account_at_its_limit_does_not_reduce_others_entitlements():
    jobs = [Job(t) for t in (2, 3, 4) for _ in range(9)]
    accounts = [Account(), Account(), Account(parent=0), Account(parent=0, cap={0: 0}), Account(parent=1)]
    found = shares(snapshot([(0, 8)], accounts, jobs))
    assert found.entitled[:, 0].tolist() == [4, 4, 4, 0, 4]
    accounts[0].cap_total = 0
    assert shares(snapshot([(0, 8)], accounts, jobs)).entitled[:, 0].tolist() == [0, 8, 0, 0, 8]


def test_caps_hold_and_what_they_leave_goes_to_others():
    jobs = [Job(t) for t in range(3) for _ in range(9)]
    found = shares(snapshot([(0, 8)], [Account(1), Account(2, cap_total=2), Account(4)], jobs))
    assert found.share[:, 0] == pytest.approx([1.2, 2, 4.8])
    found = shares(snapshot([(0, 4), (1, 4)], [Account(1), Account(2, cap={0: 0}), Account(4)], jobs))
    assert found.share[1] == pytest.approx([0, 8 * 2 / 7])


def test_a_job_without_measurements_counts_as_equally_fast_everywhere():
    found = shares(snapshot([(0, 4), (1, 4)], [Account(), Account()], [Job(0), Job(1, gpus=4)]))
    assert found.share.sum(axis=1) == pytest.approx([1, 4])


@EXAMPLES
@given(snapshots())
def test_no_account_gets_more_than_exists_or_than_it_can_use(view):
    found, tree = shares(view), Tree.of(view.accounts.parent)
    capacity = np.bincount(view.cluster.node_generation, view.cluster.capacity)
    able = view.jobs.sharing(may_run(view, tree)[0])
    size = (view.jobs.workers * view.jobs.gpus).astype(float)
    wants = np.zeros_like(found.share)
    np.add.at(wants, view.jobs.account, able * size[:, None])
    assert (found.share >= -1e-9).all()
    assert (found.share[tree.roots].sum(axis=0) <= capacity + 1e-6).all()
    assert (found.share <= tree.sums(wants) + 1e-6).all()
    assert (found.share <= view.accounts.cap + 1e-6).all()
    assert (found.share.sum(axis=1) <= view.accounts.cap_total + 1e-6).all()


@EXAMPLES
@given(snapshots())
def test_every_account_gets_at_least_what_it_is_guaranteed(view):
    found, tree = shares(view), Tree.of(view.accounts.parent)
    assert (found.guaranteed <= found.entitled + 1e-6).all()
    assert (found.guaranteed.sum(axis=1) <= found.share.sum(axis=1) + 1e-6).all()
    for account, children in enumerate(tree.children):
        if len(children):
            assert found.share[children].sum(axis=0) == pytest.approx(found.share[account], abs=1e-6)
            below = found.guaranteed[children].sum()
            assert below <= found.guaranteed[account].sum() + 1e-6


@EXAMPLES
@given(snapshots(), st.integers(2, 9))
def test_only_ratios_of_tickets_matter(view, factor):
    before = shares(view)
    view.accounts.tickets[:] *= factor
    after = shares(view)
    assert after.entitled == pytest.approx(before.entitled, abs=1e-6)
    assert after.share.sum(axis=1) == pytest.approx(before.share.sum(axis=1), abs=1e-5)


def test_a_guarantee_is_taken_where_it_leaves_others_the_most():
    jobs = [Job(0, gpus=4, accepts=(1,)), Job(1, accepts=(1,)), Job(1, workers=3, gpus=2)]
    jobs += [Job(2, gpus=4, accepts=(1,))]
    view = snapshot([(0, 8), (1, 8)], [Account(), Account(), Account()], jobs)
    assert shares(view).share == is_about([[0, 4], [6, 0], [0, 4]])


def test_a_cap_on_one_generation_leaves_the_choice_of_the_others():
    jobs = [Job(1, gpus=6, accepts=(3,)), Job(0, workers=5)]
    view = snapshot([(0, 3), (1, 3), (1, 3), (2, 8), (3, 8)], [Account(cap={2: 4}), Account()], jobs)
    assert shares(view).share.sum(axis=1) == pytest.approx([5, 6])


def test_caps_at_several_levels_give_no_account_more_than_its_jobs_can_use():
    accounts = [Account(2), Account(2), Account(100, parent=0, cap={0: 2}), Account(parent=1)]
    accounts += [Account(4, parent=2, cap={3: 8}), Account(4, parent=3, cap={1: 7})]
    view = snapshot([(0, 16), (1, 4), (2, 8), (3, 6)], accounts, [Job(4), Job(5, workers=2, gpus=2)])
    assert shares(view).share.sum(axis=1) == pytest.approx([1, 4, 1, 4, 1, 4])


@pytest.mark.parametrize("seed", range(4))
def test_totals_in_trees_are_max_min_at_every_level_within_limits(seed):
    """Proves that accounts' total GPUs are max-min fair at every level of the tree, by comparison with linear programs.

    The linear programs find only these totals, not how many GPUs of each generation an account gets.
    """
    for number in range(30):
        given = mixed(Maker(seed, number))
        given = replace(given, accounts=tuple(replace(account, cap={}) for account in given.accounts))
        active = given.active(number % 4 * 5)
        view = given.snapshot(active, {}, {}, {}, {})
        assert Oracle(given, active).unfair(shares(view).share) == (None, 0.0), f"{given}"


def test_an_account_gets_of_each_generation_what_those_below_it_need():
    accounts = [Account(), Account(), Account(parent=0), Account(tickets=4, parent=0)]
    few = [Job(1, workers=2, gpus=2), *[Job(2, gpus=3)] * 2, Job(2, gpus=4), Job(2, gpus=3)]
    jobs = [*few, Job(3, workers=2, gpus=5), Job(3, workers=2, gpus=7)]
    found = shares(snapshot([(0, 8), (1, 8), (2, 8), (2, 8), (2, 8)], accounts, jobs)).share
    assert found.sum(axis=1) == pytest.approx([36, 4, 12, 24])


def test_no_account_is_due_more_than_its_whole_gangs_can_use_of_the_nodes():
    accounts = [Account(8), Account(1)]
    odd = snapshot([(0, 8)], accounts, [*[Job(0, gpus=6)] * 2, *[Job(1)] * 8])
    assert shares(odd).share[:, 0] == pytest.approx([6, 2])
    # Two workers of 3 GPUs fit on each node of 8, so one gang of three workers fits on two nodes.
    wide = snapshot([(0, 8), (0, 8)], accounts, [*[Job(0, workers=3, gpus=3)] * 2, *[Job(1)] * 16])
    assert shares(wide).share[:, 0] == pytest.approx([9, 7])


def test_gangs_of_two_shapes_can_use_what_each_leaves():
    jobs = [*[Job(0, gpus=3)] * 5, *[Job(0, gpus=5)] * 5, *[Job(1)] * 16]
    found = shares(snapshot([(0, 8), (0, 8)], [Account(100), Account(1)], jobs)).share[:, 0]
    assert found == pytest.approx([16 * 100 / 101, 16 / 101])


def test_a_teams_limit_on_a_generation_costs_only_users_that_can_use_no_other():
    accounts = [Account(cap={0: 2}), Account(parent=0), Account(parent=0), Account()]
    jobs = [*[Job(1)] * 4, *[Job(2, accepts=(0,))] * 4, *[Job(3)] * 8]
    found = shares(snapshot([(0, 4), (1, 4)], accounts, jobs)).share
    assert found.sum(axis=1) == pytest.approx([4, 2, 2, 4])
    assert found[2] == pytest.approx([2, 0])


def test_a_team_keeps_its_guarantee_when_the_levels_above_divide():
    accounts = [Account(), Account(parent=0, cap_total=2), Account(), Account(parent=1), Account(parent=0)]
    jobs = [
        Job(2, workers=2, gpus=2, accepts=(1,)),
        Job(3, accepts=(1,)),
        Job(4, workers=3, gpus=2, accepts=(0, 2)),
    ]
    found = shares(snapshot([(0, 3), (0, 3), (0, 3), (1, 4), (2, 3), (3, 8)], accounts, jobs))
    assert found.guaranteed.sum(axis=1)[1] == pytest.approx(1)
    assert found.share.sum(axis=1) == pytest.approx([7, 1, 3, 1, 6])
