"""Tests that a forecast simulates rounds with all data that live rounds have: where gangs run, and where they ran
last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from fairshare.driver import Situation
from fairshare.forecast import ROUNDS_BETWEEN, rounds_until_start
from fairshare.model import NOWHERE, Decision, Reason, Snapshot
from fairshare.policies.base import State
from fairshare.policies.gandiva_fair.policy import GandivaFair
from fairshare.validate import InvalidPlan
from tests.fairshare.build import Account, Job, place_of, situation, snapshot, snapshots


def nodes_of(given: Snapshot, job: int) -> list[int]:
    return given.jobs.place_node[given.jobs.place_start[job] : given.jobs.place_start[job + 1]].tolist()


@for_all(snapshots(), st.integers(0, 3), st.integers(1, 4))
def test_each_gang_is_where_the_last_plan_put_it(given: Snapshot, seed: int, rounds: int) -> None:
    now = situation(given)
    for number in range(rounds):
        given, decision = now.view, now.decide(seed + number)
        now = now.after(decision)
        then = now.view
        for job in range(len(given.jobs)):
            if job not in decision.run:
                assert nodes_of(then, job) == nodes_of(given, job)
                assert (then.jobs.running_on[job], then.jobs.resident[job]) == (NOWHERE, 0.0)
                continue
            put = place_of(decision, job)
            generation = decision.generation[decision.run.tolist().index(job)]
            assert (nodes_of(then, job), then.jobs.running_on[job]) == (put, generation)
            stays = given.jobs.running_on[job] == generation and nodes_of(given, job) == put
            had = given.jobs.resident[job] if stays else 0.0
            assert then.jobs.resident[job] == had + given.settings.quantum
        assert then.jobs.place_start[0] == 0
        assert then.jobs.place_start[-1] == len(then.jobs.place_node)


def test_time_passes_and_jobs_attain_the_gpu_time_they_hold() -> None:
    given = snapshot([(0, 4), (1, 4)], [Account()], [Job(0, gpus=2, accepts=(1,)), Job(0, gpus=9)])
    given = replace(given, now=100.0, jobs=replace(given.jobs, attained=np.array([[1.0, 2.0], [3.0, 4.0]])))
    now = situation(given)
    for _ in range(2):
        now = now.after(now.decide(0))
    assert now.view.now == 220
    assert now.view.jobs.attained is not None
    assert now.view.jobs.attained.tolist() == [[1, 242], [3, 4]]


@for_all(snapshots(), st.integers(0, 3))
def test_a_forecast_round_equals_a_live_round(given: Snapshot, seed: int) -> None:
    now = situation(given)
    after = now.after(now.decide(seed))
    then, decision = after.view, after.decide(seed + 1)
    used = np.zeros(len(then.cluster.capacity), dtype=np.int64)
    for job in decision.run.tolist():
        np.add.at(used, place_of(decision, job), then.jobs.gpus[job])
    assert (used <= then.cluster.capacity).all()


class Late(GandivaFair):
    """A policy that runs no job in the first 70 seconds, and none in quantum rounds (rounds in which jobs take turns).
    It asks for a round every 20 seconds."""

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        plan = super().decide(state, view, random)
        if view.settings.is_quantum or view.now < 70:
            nothing = np.zeros(0, dtype=np.int64)
            plan = replace(
                plan, run=nothing, generation=nothing, place_start=np.zeros(1, dtype=np.int64), place_node=nothing,
                reason=np.full(len(view.jobs), int(Reason.SHARE_IN_USE)),
            )  # fmt: skip
        return replace(plan, ask_again=20.0)


def test_rounds_that_the_policy_asks_for_are_played_too() -> None:
    given = snapshot([(0, 4)], [Account()], [Job(0)])
    now = Situation.first(Late(Late.options_type()), given)
    assert (
        rounds_until_start(now, 0, seed=0, most=3) == 3
    )  # after 80 seconds; the second quantum ends after 120
    assert rounds_until_start(now, 0, seed=0, most=2) is None


class Asking(GandivaFair):
    """A policy that asks for the next round after `after` seconds, and counts its decisions."""

    after: float
    asked = 0

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        self.asked += 1
        return replace(super().decide(state, view, random), ask_again=self.after)


@pytest.mark.parametrize(("after", "most"), [(1.0, 5 * ROUNDS_BETWEEN + 1), (3600.0, 6), (1e300, 6)])
def test_a_policy_that_asks_for_many_rounds_gets_only_a_few_in_a_forecast(after: float, most: int) -> None:
    given = snapshot([(0, 4)], [Account(), Account()], [Job(0, on=(0,)), Job(1, blocked=1)], quantum=3600.0)
    policy = Asking(Asking.options_type())
    policy.after = after
    assert rounds_until_start(Situation.first(policy, given), 1, seed=0, most=5) is None
    assert policy.asked == most


def test_a_request_for_an_immediate_round_is_refused() -> None:
    policy = Asking(Asking.options_type())
    policy.after = 1e-9
    now = Situation.first(policy, snapshot([(0, 4)], [Account()], [Job(0)]))
    with pytest.raises(InvalidPlan, match="asks for the next round in 1e-09 s, but the minimum is 1 s"):
        rounds_until_start(now, 0, seed=0, most=3)


def test_suspended_gangs_keep_their_last_nodes_until_they_resume() -> None:
    """Proves that a forecast's simulated rounds remember the last nodes of a suspended gang until the gang resumes.

    Three teams take turns on two nodes.
    """
    given = snapshot(
        nodes=[(0, 4), (0, 4)],
        accounts=[Account(), Account(), Account()],
        jobs=[Job(0, gpus=4, on=(1,)), Job(1, gpus=4, on=(0,)), Job(2, gpus=4)],
        trading=False,
    )
    last = {0: [1], 1: [0]}
    resumed = 0
    now = situation(given)
    for number in range(12):
        given, decision = now.view, now.decide(number)
        for job in decision.run.tolist():
            if given.jobs.running_on[job] == NOWHERE and job in last:
                resumed += 1
            last[job] = place_of(decision, job)
        now = now.after(decision)
        assert all(nodes_of(now.view, job) == nodes for job, nodes in last.items())
    assert resumed > 3


def test_rounds_until_start_counts_the_quanta_that_a_gang_must_wait() -> None:
    given = snapshot(
        nodes=[(0, 4)],
        accounts=[Account(), Account()],
        jobs=[Job(0, gpus=4, on=(0,)), Job(1, gpus=4)],
        trading=False,
    )
    number = rounds_until_start(situation(given), 1, seed=0, most=10)
    assert number is not None
    assert 0 < number <= 3
