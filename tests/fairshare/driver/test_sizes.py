"""Tests the sizes of elastic gangs: between their least and their most, from GPUs that nobody else can use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.codec import decode_snapshot, encode
from fairshare.driver import Situation, received_gpus
from fairshare.entitlement import entitlements
from fairshare.model import NOWHERE, Decision, Reason, Snapshot
from fairshare.policies import policy_named
from fairshare.quotas import Quotas, limits_of
from fairshare.sizes import at_least_size
from fairshare.tree import Tree
from fairshare.validate import InvalidPlan, stays_put, validate
from tests.fairshare.build import (
    Account,
    Job,
    decide,
    place_of,
    situation,
    snapshot,
    snapshots,
    used_on_nodes,
    with_closed,
)

EXAMPLES = settings(max_examples=50, deadline=None)
LONG = 10_000.0


@st.composite
def elastic(draw: st.DrawFn, /, **given_settings: object) -> Snapshot:
    """Draws a cluster in which some gangs are elastic; those that run have any size between their least and most."""
    view = draw(snapshots(**given_settings))
    jobs, least, most = view.jobs, view.jobs.workers.copy(), view.jobs.workers.copy()
    for job in range(len(jobs)):
        if jobs.running_on[job] != NOWHERE:
            least[job] = draw(st.integers(1, int(jobs.workers[job])))
        if draw(st.booleans()):
            most[job] += draw(st.integers(0, 6))
    resident = np.array([draw(st.sampled_from([10.0, 200.0, LONG])) for _ in range(len(jobs))])
    return replace(view, jobs=replace(jobs, least=least, most=most, resident=resident))


def size_of(plan: Decision, job: int) -> int:
    return len(place_of(plan, job))


@EXAMPLES
@given(elastic(), st.sets(st.integers(0, 8), max_size=3))
def test_sizes_are_between_least_and_most_and_the_same_for_the_same_record(view, closed):
    view = with_closed(view, closed)
    plan, jobs = decide(view, 3), view.jobs
    for job in plan.run.tolist():
        assert jobs.least[job] <= size_of(plan, job) <= jobs.most[job]
    assert (used_on_nodes(view, plan) <= view.cluster.capacity).all()
    assert encode(plan) == encode(decide(decode_snapshot(encode(view)), 3))


@EXAMPLES
@given(elastic())
def test_others_get_what_they_get_beside_gangs_of_the_least_size(view):
    base = at_least_size(view)
    plan, alone = decide(view, 1), decide(fixed(base), 1)
    assert np.array_equal(plan.run, alone.run)
    assert np.array_equal(plan.generation, alone.generation)
    assert np.array_equal(plan.reason, alone.reason)
    assert np.array_equal(plan.share, alone.share)
    assert plan.trades == alone.trades
    for job in plan.run.tolist():
        if view.jobs.most[job] == base.jobs.workers[job]:
            assert place_of(plan, job) == place_of(alone, job)


@EXAMPLES
@given(elastic(may_preempt=True))
def test_no_gpu_is_idle_that_a_gang_which_starts_could_use(view):
    plan, jobs, tree = decide(view, 1), view.jobs, Tree.of(view.accounts.parent)
    idle = view.cluster.capacity - used_on_nodes(view, plan)
    quotas = Quotas(tree, limits_of(view.accounts, tree, entitlements(view), view.settings).most)
    gangs = list(zip(plan.run.tolist(), plan.generation.tolist(), plan.gpus(jobs).tolist(), strict=True))
    for job, kind, gpus in gangs:
        quotas.use(int(jobs.account[job]), kind, gpus)
    stays = stays_put(plan, jobs)
    for job, kind, _ in gangs:
        gpus = int(jobs.gpus[job])
        if not stays[job] and size_of(plan, job) < jobs.most[job]:
            fits = (idle >= gpus) & (view.cluster.node_generation == kind)
            assert not fits.any() or not quotas.allow(int(jobs.account[job]), kind, gpus)


def fixed(view: Snapshot) -> Snapshot:
    return replace(view, jobs=replace(view.jobs, least=None, most=None))


ONE = [Account()]
TWO = [Account(), Account()]


def test_a_gang_starts_with_as_many_workers_as_others_leave():
    given_ = snapshot([(0, 8)], TWO, [Job(0, workers=2, most=6), Job(1, workers=1, gpus=3)])
    assert size_of(decide(given_, 1), 0) == 5


def test_what_is_left_goes_to_elastic_gangs_by_the_tickets_of_their_accounts():
    given_ = snapshot([(0, 10)], [Account(3.0), Account(1.0)], [Job(0, most=10), Job(1, most=10)])
    plan = decide(given_, 1)
    assert [size_of(plan, job) for job in (0, 1)] == [7, 3]


def test_a_gang_shrinks_at_once_for_a_job_that_waits_instead_of_being_stopped():
    jobs = [Job(0, workers=1, most=4, on=(0, 0, 0, 0), resident=10.0), Job(1, workers=3)]
    plan = decide(snapshot([(0, 4)], TWO, jobs), 1)
    assert [size_of(plan, job) for job in (0, 1)] == [1, 3]


def test_a_gang_keeps_its_size_within_the_minimum_hold_and_where_nothing_is_stopped():
    jobs = [Job(0, workers=1, most=4, on=(0, 0, 0, 0), resident=10.0), Job(1, workers=3)]
    for held in ({"min_hold": 60.0}, {"may_preempt": False}):
        plan = decide(snapshot([(0, 4)], TWO, jobs, **held), 1)
        assert plan.run.tolist() == [0]
        assert size_of(plan, 0) == 4


@pytest.mark.parametrize(
    ("resident", "switch_cost", "workers"),
    [(119.0, 0.0, 7), (120.0, 0.0, 8), (120.0, 15.0, 8), (120.0, 15.1, 7), (1e5, 1e4, 8)],
)
def test_a_gang_grows_once_it_has_run_for_longer_than_the_switch_takes_to_pay_off(
    resident, switch_cost, workers
):
    job = Job(0, workers=2, most=8, on=(0,) * 7, resident=resident)
    given_ = snapshot([(0, 8)], ONE, [job], switch_cost=switch_cost)
    assert size_of(decide(given_, 1), 0) == workers


def test_a_gang_grows_only_when_its_quantum_is_over():
    given_ = snapshot([(0, 8)], ONE, [Job(0, workers=2, most=8, on=(0, 0, 0))])
    assert size_of(decide(given_, 1), 0) == 8
    assert size_of(situation(given_).fill(1), 0) == 3


def test_a_gang_passes_on_what_it_has_to_another_elastic_gang_only_if_that_one_takes_it():
    def after(resident: float) -> list[int]:
        jobs = [
            Job(0, workers=1, most=8, on=(0,) * 7),
            Job(1, workers=1, most=8, on=(0,), resident=resident),
        ]
        plan = decide(snapshot([(0, 8)], TWO, jobs), 1)
        return [size_of(plan, job) for job in (0, 1)]

    assert after(LONG) == [4, 4]
    assert after(10.0) == [7, 1]


@pytest.mark.parametrize(("switch_cost", "most"), [(0.0, 6), (60.0, 4), (600.0, 1)])
def test_a_gpu_that_others_use_every_other_quantum_restarts_a_gang_less_the_more_that_costs(
    switch_cost, most
):
    jobs = [Job(0, workers=1, most=4, on=(0,) * 4), Job(1)]
    now, restarts = situation(snapshot([(0, 4)], TWO, jobs, switch_cost=switch_cost)), 0
    for number in range(12):
        blocked = np.array([0, Reason.BACKING_OFF if number % 2 else 0], dtype=np.int64)
        now = replace(now, view=replace(now.view, jobs=replace(now.view.jobs, blocked=blocked)))
        plan = now.decide(number)
        restarts += not stays_put(plan, now.view.jobs)[0]
        now = now.after(plan)
    assert 1 <= restarts <= most


def test_a_gang_becomes_smaller_at_the_end_of_its_quantum_when_a_limit_was_set():
    jobs = [Job(0, workers=1, most=4, on=(0, 0, 0, 0), resident=10.0)]
    given_ = snapshot([(0, 4)], [Account(cap_total=2)], jobs)
    assert size_of(decide(given_, 1), 0) == 2
    assert size_of(situation(given_).fill(1), 0) == 4


def test_a_gang_on_a_closed_node_neither_grows_nor_shrinks():
    jobs = [Job(0, workers=1, most=4, on=(0, 1)), Job(1, workers=3, gpus=2)]
    plan = decide(with_closed(snapshot([(0, 4), (0, 4)], TWO, jobs), {1}), 1)
    assert place_of(plan, 0) == [0, 1]


def test_the_workers_of_a_node_have_consecutive_ranks():
    jobs = [Job(0, workers=2, gpus=2, most=6), Job(0, workers=1, gpus=3, on=(0,), priority=1)]
    nodes = place_of(decide(snapshot([(0, 8), (0, 8)], ONE, jobs), 1), 0)
    assert len(nodes) == 6
    assert nodes == sorted(nodes, key=nodes.index)


def test_workers_beyond_the_least_size_are_not_charged_to_the_share():
    view = snapshot([(0, 8)], ONE, [Job(0, workers=2, most=8)])
    plan = decide(view, 1)
    assert received_gpus(view, plan).sum() == 8
    assert received_gpus(view, plan, shared=True).sum() == 2
    later = situation(view).after(plan, 60.0).view.jobs
    assert (int(later.workers[0]), len(later.place_node)) == (8, 8)


def test_a_plan_with_a_size_that_the_gang_does_not_accept_is_refused():
    view = snapshot([(0, 8)], ONE, [Job(0, workers=2, most=6)])
    plan = decide(view, 1)
    wider = replace(view, jobs=replace(view.jobs, most=view.jobs.most - 1))
    with pytest.raises(InvalidPlan, match="wrong number of workers"):
        validate(plan, wider)


def test_sizes_are_chosen_under_every_policy():
    view = snapshot([(0, 8)], ONE, [Job(0, workers=2, most=6)])
    for name in ("gandiva_fair", "market"):
        assert size_of(Situation.first(policy_named(name, None, {}), view).decide(1), 0) == 6


def test_a_gang_beyond_a_new_limit_gives_up_workers_between_quanta_only_for_a_gang_that_starts():
    beyond = Job(0, workers=1, most=4, on=(0, 0, 0), resident=10.0)
    alone = situation(snapshot([(0, 4)], [Account(cap_total=2)], [beyond])).fill(1)
    assert size_of(alone, 0) == 3
    both = situation(snapshot([(0, 4)], [Account(cap_total=2)], [beyond, Job(0)])).fill(1)
    assert [size_of(both, job) for job in (0, 1)] == [1, 1]


def test_a_gang_that_only_gives_up_workers_is_not_held_against_its_accounts_limit():
    jobs = [Job(0, gpus=3, on=(0,)), Job(0, workers=1, most=3, on=(0, 0, 0), resident=10.0), Job(1, gpus=2)]
    given_ = snapshot([(0, 6)], TWO, jobs)
    plan = decide(given_, 1)
    assert [size_of(plan, job) for job in (0, 1, 2)] == [1, 1, 1]
    lowered = replace(given_.accounts, cap_total=np.array([3.0, np.inf]))
    validate(plan, replace(given_, accounts=lowered))
