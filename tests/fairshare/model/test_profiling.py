"""Tests that gangs are measured on every generation that they may use, at no cost to other accounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given as examples
from hypothesis import settings

from fairshare.driver import received_gpus
from fairshare.model import Snapshot
from tests.fairshare.build import (
    Account,
    Job,
    decide,
    place_of,
    situation,
    snapshot,
    snapshots,
    used_on_nodes,
)


def two_sided(**chosen: object) -> Snapshot:
    """Returns a team with two gangs that run on different generations. Each gang is measured only on the one where it
    runs."""
    jobs = [Job(0, on=(0,), rate={0: 1.0}), Job(0, on=(1,), rate={1: 3.0})]
    return snapshot([(0, 1), (1, 1)], [Account(trades=True)], jobs, **chosen)


def test_two_gangs_of_a_team_swap_to_be_measured_on_both_generations():
    decision = decide(two_sided(), 0)
    assert decision.run.tolist() == [0, 1]
    assert (place_of(decision, 0), place_of(decision, 1)) == ([1], [0])
    assert decision.generation.tolist() == [1, 0]


def test_gangs_do_not_swap_if_no_sample_is_missing_or_nothing_is_traded():
    measured = two_sided()
    measured = replace(measured, jobs=replace(measured.jobs, rate=np.ones((2, 2))))
    unmeasured = replace(measured, jobs=replace(measured.jobs, rate=np.full((2, 2), np.nan)))
    for case in (measured, unmeasured, two_sided(trading=False), two_sided(may_preempt=False)):
        assert decide(case, 0).generation.tolist() == [0, 1]


def test_a_new_gang_stays_until_it_is_measured():
    fresh = two_sided()
    fresh = replace(fresh, jobs=replace(fresh.jobs, resident=np.array([1.0, 1.0])))
    assert decide(fresh, 0).generation.tolist() == [0, 1]


def test_gangs_of_different_shapes_accounts_or_generations_do_not_swap():
    def stays(first: Job, second: Job, accounts: int = 1) -> None:
        given = snapshot([(0, 2), (1, 2)], [Account(trades=True) for _ in range(accounts)], [first, second])
        assert decide(given, 0).generation.tolist() == [0, 1]

    measured = {"on": (0,), "rate": {0: 1.0}}
    stays(Job(0, **measured), Job(0, gpus=2, on=(1,)))
    stays(Job(0, **measured), Job(0, on=(1,), accepts=(1,)))
    stays(Job(0, **measured, accepts=(0,)), Job(0, on=(1,), rate={1: 1.0}, accepts=(1,)))


def test_every_gang_is_measured_everywhere_after_a_few_rounds_and_moves_no_more():
    jobs = [Job(0) for _ in range(8)]
    given = snapshot([(0, 4), (1, 4)], [Account(trades=True)], jobs, switch_cost=2.0)
    moves = []
    now = situation(given)
    for number in range(24):
        given, decision = now.view, now.decide(number)
        present = given.jobs.running_on[decision.run]
        moves.append(int(((present >= 0) & (present != decision.generation)).sum()))
        rate = given.jobs.rate.copy()
        rate[decision.run, decision.generation] = 1.0 + decision.generation
        now = now.after(decision)
        now = replace(now, view=replace(now.view, jobs=replace(now.view.jobs, rate=rate)))
    assert np.isfinite(now.view.jobs.rate).all()
    assert sum(moves) >= 8, "each gang has moved once"
    assert sum(moves[12:]) == 0


@settings(max_examples=150, deadline=None)
@examples(snapshots(trading=True, may_preempt=True))
def test_swaps_change_nothing_for_any_account_or_node(given):
    unmeasured = replace(given, jobs=replace(given.jobs, rate=np.full_like(given.jobs.rate, np.nan)))
    curious = unmeasured.jobs.rate.copy()
    running = unmeasured.jobs.running_on >= 0
    curious[running, unmeasured.jobs.running_on[running]] = 1.0
    plain = decide(unmeasured, 7)
    swapped = decide(replace(unmeasured, jobs=replace(unmeasured.jobs, rate=curious)), 7)
    assert (used_on_nodes(unmeasured, swapped) == used_on_nodes(unmeasured, plain)).all()
    assert (received_gpus(unmeasured, swapped) == received_gpus(unmeasured, plain)).all()
    assert unmeasured.jobs.accepts[swapped.run, swapped.generation].all()
