"""Tests that gangs of one account swap places until each is measured on every generation, at no cost to other
accounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings

from fairshare.driver import Situation
from fairshare.model import NOWHERE, Snapshot
from fairshare.policies.gandiva_fair.policy import GandivaFair
from fairshare.policies.gandiva_fair.samples import swap_for_samples
from fairshare.policies.gandiva_fair.selection import Picks
from fairshare.reasons import may_run
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot, snapshots, with_closed


def decided(view: Snapshot) -> tuple[Picks, Picks]:
    """Returns the jobs that the policy chooses to run, and where, twice: without swaps, and with the swaps that give
    gangs measurements on other generations."""
    plan = Situation.first(GandivaFair(GandivaFair.options_type(trading=False)), view).decide(1)
    generation = np.full(len(view.jobs), NOWHERE, dtype=np.int64)
    generation[plan.run] = plan.generation
    nodes = {
        job: plan.place_node[plan.place_start[p] : plan.place_start[p + 1]]
        for p, job in enumerate(plan.run.tolist())
    }
    picks = Picks(generation, nodes, plan.preemptible, plan.reason)
    tree = Tree.of(view.accounts.parent)
    return picks, swap_for_samples(view, tree, may_run(view, tree)[0], picks)


def two(first: Job, second: Job, **more: object) -> Snapshot:
    return snapshot([(0, 1), (1, 1)], [Account(trades=True)], [first, second], **more)


def beside_a_free_node(first: Job, second: Job) -> Snapshot:
    return snapshot([(0, 1), (0, 1), (1, 1)], [Account(trades=True)], [first, second])


MEASURED = {"on": (0,), "rate": {0: 1.0}}


def test_a_measured_gang_changes_places_with_one_where_it_is_not_measured() -> None:
    before, after = decided(two(Job(0, **MEASURED), Job(0, on=(1,))))
    assert before.generation.tolist() == [0, 1]
    assert after.generation.tolist() == [1, 0]
    assert [after.nodes[job].tolist() for job in (0, 1)] == [[1], [0]]


@pytest.mark.parametrize(
    "view",
    [
        two(Job(0, on=(0,)), Job(0, on=(1,))),
        two(Job(0, on=(0,), rate={0: 1.0, 1: 1.0}), Job(0, on=(1,))),
        two(Job(0, **MEASURED, accepts=(0,)), Job(0, on=(1,))),
        two(Job(0, **MEASURED), Job(0, on=(1,), accepts=(1,))),
        two(Job(0, **MEASURED), Job(0, on=(1,)), trading=False),
        two(Job(0, **MEASURED), Job(0, on=(1,)), may_preempt=False),
        two(Job(0, **MEASURED, resident=20.0), Job(0, on=(1,))),
        two(Job(0, **MEASURED), Job(0, on=(1,), resident=20.0)),
        two(Job(0, **MEASURED), Job(0, on=(1,), preemptible=True)),
        snapshot([(0, 1), (1, 1)], [Account()], [Job(0, **MEASURED), Job(0, on=(1,))]),
        with_closed(beside_a_free_node(Job(0, **MEASURED), Job(0, on=(2,))), {0}),
        with_closed(beside_a_free_node(Job(0, on=(2,), rate={1: 1.0}), Job(0, on=(0,))), {0}),
    ],
    ids=[
        "unmeasured",
        "known",
        "only here",
        "only there",
        "no trades",
        "fill",
        "new",
        "new there",
        "preemptible there",
        "no trader",
        "on a closed node",
        "closed node there",
    ],
)
def test_a_gang_stays_where_a_swap_is_not_allowed_or_teaches_nothing(view: Snapshot) -> None:
    before, after = decided(view)
    assert before.generation.tolist() == after.generation.tolist() == view.jobs.running_on.tolist()


@settings(max_examples=100, deadline=None)
@examples(snapshots(trading=True, may_preempt=True))
def test_swaps_leave_the_gpus_of_each_account_on_each_node_unchanged(view: Snapshot) -> None:
    rate = np.full_like(view.jobs.rate, np.nan)
    running = np.flatnonzero(view.jobs.running_on >= 0)
    rate[running, view.jobs.running_on[running]] = 1.0
    before, after = decided(replace(view, jobs=replace(view.jobs, rate=rate)))

    def used(picks: Picks) -> list[tuple[int, int, int]]:
        of_job = zip(view.jobs.account.tolist(), view.jobs.gpus.tolist(), strict=True)
        owners = list(of_job)
        return sorted((node, *owners[job]) for job, nodes in picks.nodes.items() for node in nodes.tolist())

    assert used(before) == used(after)
    for job, nodes in after.nodes.items():
        assert set(view.cluster.node_generation[nodes].tolist()) == {after.generation[job]}
        assert view.jobs.accepts[job, after.generation[job]]


def test_gangs_swap_only_once_if_no_speed_is_ever_measured() -> None:
    now = Situation.first(
        GandivaFair(GandivaFair.options_type()), two(Job(0, **MEASURED), Job(0, on=(1,)), quantum=60.0)
    )
    seen = []
    for number in range(8):
        plan = now.decide(number)
        seen.append(plan.generation.tolist())
        now = now.after(plan)
    assert seen == [[1, 0]] * 8
