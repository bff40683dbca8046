"""Tests that the judge, which checks policies' promises, agrees with figures computed by hand and detects broken
policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from fairshare.check.economy import Account, Economy, Job, economy
from fairshare.check.fluid import fluid_lag
from fairshare.check.generate import FLAVOURS, random_economy
from fairshare.check.judge import breach, judged, smallest
from fairshare.check.oracle import Oracle, all_fit
from fairshare.check.play import PolicyUnderTest, play
from fairshare.check.played import Played
from fairshare.check.policies import NEWEST, VERSION_1
from fairshare.check.promises import PROMISES
from fairshare.driver import Situation
from fairshare.model import Decision, Reason, Settings, Snapshot
from fairshare.policies.base import Policy, State

A, J, S = Account, Job, economy
T = TypeVar("T")
BY_NAME = {promise.name: promise for promise in PROMISES}


def due(given: Economy) -> Oracle:
    return Oracle(given, given.active(0))


def test_a_private_cluster_is_a_part_by_tickets_of_every_generation():
    given = S([(0, 8), (1, 4)], [A(3), A(1), A(parent=0), A(parent=0)], [J(1), J(2, accepts=(0,))])
    assert due(given).entitled.tolist() == [[6, 3], [2, 1], [6, 3], [0, 0]]


def test_a_guarantee_is_the_best_use_of_the_private_cluster():
    given = S(
        [(0, 8), (1, 8)],
        [A(100), A(1)],
        [J(0, gpus=8, rate={0: 1.0, 1: 4.0}), J(1, gpus=8, accepts=(1,), rate={1: 1.0})],
    )
    progress, fewest, most = due(given).guarantee
    fast = 800 / 101
    assert progress == pytest.approx([fast + (8 - fast) / 4, 8 / 101], abs=1e-5)
    assert fewest == pytest.approx([8, 8 / 101], abs=1e-4)
    assert most == pytest.approx([8, 8 / 101], abs=1e-4)


def test_a_guarantee_is_within_the_limits_up_the_tree():
    given = S([(0, 8)], [A(cap_total=2), A(parent=0), A(parent=0)], [*[J(1)] * 2, J(2)])
    progress, _, _ = due(given).guarantee
    assert progress == pytest.approx([2, 1, 1])


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        (S([(0, 1), (1, 1)], [A(), A()], [J(0), J(1, accepts=(1,))]), [1, 1]),
        (S([(0, 9), (1, 1)], [A(), A()], [J(0, workers=10), *[J(0)] * 10, J(1, accepts=(1,))]), [9, 1]),
        (S([(0, 8)], [A(2), A(1), A(1)], [*[J(0)] * 8, *[J(1)] * 8, J(2)]), [14 / 3, 7 / 3, 1]),
        (S([(0, 8)], [A(), A(), A(parent=0), A(parent=0)], [*[J(2)] * 3, *[J(3)] * 8, *[J(1)] * 8]), [4, 4, 2, 2]),
        (S([(0, 8)], [A(cap_total=3), A()], [*[J(0)] * 8, *[J(1)] * 8]), [3, 5]),
        (S([(0, 8)], [A(cap={0: 1}), A()], [*[J(0)] * 8, *[J(1)] * 8]), [1, 7]),
        (S([(0, 8)], [A(cap_total=2), A(parent=0), A(parent=0)], [*[J(1)] * 2, *[J(2)] * 8]), [2, 1, 1]),
    ],
)  # fmt: skip
def test_shares_are_max_min(given, shares):
    oracle = due(given)
    assert oracle.share == pytest.approx(shares, abs=1e-4)


def test_a_share_is_unfair_if_an_account_could_have_more_at_no_cost_to_others():
    given = S([(0, 1), (1, 1)], [A(), A()], [J(0), J(1, accepts=(1,))])
    assert due(given).unfair(np.array([[1.0, 0.0], [0.0, 1.0]])) == (None, 0.0)
    why, missed = due(given).unfair(np.array([[1.0, 0.0], [0.0, 0.9]]))
    assert why is not None
    assert missed == pytest.approx(0.1, abs=1e-4)


def test_a_share_of_more_than_exists_is_unfair():
    given = S([(0, 1)], [A(), A()], [J(0), J(1)])
    why, _ = due(given).unfair(np.array([[1.0], [1.0]]))
    assert why is not None


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        (S([(0, 8)], [A()], [J(0, gpus=3), J(0, gpus=5)]), True),
        (S([(0, 8)], [A()], [J(0, gpus=3)] * 3), False),
        (S([(0, 8)] * 2, [A()], [J(0, gpus=5), J(0, gpus=5), J(0, workers=6)]), True),
        (S([(0, 8)] * 2, [A()], [J(0, gpus=5), J(0, gpus=5), J(0, workers=3, gpus=2)]), False),
        (S([(0, 8), (1, 8)], [A()], [J(0, workers=9), J(0)]), True),
        (S([(0, 8), (1, 8)], [A()], [J(0, gpus=8, accepts=(0,)), J(0, accepts=(0,))]), False),
        (S([(0, 8)], [A(cap_total=4)], [J(0, gpus=4), J(0)]), False),
    ],
)
def test_all_fit_when_an_assignment_exists(given, fits):
    assert all_fit(given, given.active(0)) is fits


def test_a_job_that_can_never_run_does_not_keep_the_others_from_fitting():
    given = S([(0, 8)], [A()], [J(0, gpus=9), J(0)])
    assert all_fit(given, given.active(0)) is True


def test_the_fluid_stride_takes_turns():
    given = S([(0, 8)], [A(), A()], [J(0, gpus=8), J(1, gpus=8)])
    lag, largest = fluid_lag(given, [np.array([4.0, 4.0])] * 6)
    assert lag[:, 0].tolist() == [4, 0, 4, 0, 4, 0]
    assert largest == 8


def test_time_that_did_not_exist_causes_no_lag():
    given = S([(0, 4)] * 2, [A(), A()], [J(0, gpus=4), J(1, gpus=3), J(1, gpus=3)])
    lag, _ = fluid_lag(given, [np.array([4.0, 4.0])] * 50)
    assert abs(lag).max() <= 7


@pytest.mark.parametrize("number", range(len(FLAVOURS)))
def test_an_economy_prints_as_the_code_that_makes_it(number):
    given = random_economy(3, number)
    words = {"S": S, "A": A, "J": J, "inf": float("inf")}
    assert eval(str(given), words) == given  # noqa: S307 - what we wrote ourselves


def test_the_same_seed_gives_the_same_economies():
    assert random_economy(5, 7) == random_economy(5, 7)
    assert random_economy(5, 7) != random_economy(6, 7)


@pytest.mark.parametrize("number", range(4))
def test_the_driver_plays_as_the_forecast_does(number):
    given = replace(random_economy(2, number * 10), rounds=8)
    still = replace(given, jobs=tuple(replace(job, comes=0, goes=None) for job in given.jobs))
    view = still.snapshot(still.active(0), {}, {}, {}, {})
    now = Situation.first(VERSION_1.make(still.settings), view)
    for one in play(still, VERSION_1, seed=3):
        plan = now.decide(3 + one.number)
        assert sorted(one.after) == plan.run.tolist()
        now = now.after(plan)


class Changed:
    """Wraps version 1 of the policy: one function changes every view that it sees, another changes every decision that
    it makes."""

    def __init__(
        self, inner: Policy, see: Callable[[Snapshot], Snapshot], say: Callable[[Decision], Decision]
    ) -> None:
        self.inner, self.see, self.say = inner, see, say
        self.start, self.observe = inner.start, inner.observe

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        return self.say(self.inner.decide(state, self.see(view), random))


def same(thing: T) -> T:
    return thing


def changed(
    *, see: Callable[[Snapshot], Snapshot] = same, say: Callable[[Decision], Decision] = same
) -> PolicyUnderTest:
    return PolicyUnderTest("changed", lambda settings: Changed(VERSION_1.make(settings), see, say))


def without_the_last(decision: Decision) -> Decision:
    if not len(decision.run):
        return decision
    reason = decision.reason.copy()
    reason[decision.run[-1]] = Reason.SHARE_IN_USE
    return replace(
        decision,
        reason=reason,
        run=decision.run[:-1],
        generation=decision.generation[:-1],
        place_start=decision.place_start[:-1],
        place_node=decision.place_node[: decision.place_start[-2]],
    )


def all_on_the_first_node(decision: Decision) -> Decision:
    return replace(decision, place_node=decision.place_node * 0)


def test_the_judge_sees_a_gpu_that_idles_beside_a_waiting_job():
    given = S([(0, 2)], [A()], [J(0), J(0)], rounds=2)
    found = breach(given, changed(say=without_the_last), [BY_NAME["8a"]])
    assert found is not None
    assert found.name == "8a"


def test_the_judge_sees_a_decision_that_cannot_be_carried_out():
    given = S([(0, 1), (0, 1)], [A()], [J(0), J(0)], rounds=2)
    found = breach(given, changed(say=all_on_the_first_node))
    assert found is not None
    assert found.name == "0"


def test_the_judge_sees_a_lottery_that_ignores_tickets():
    def alike(view: Snapshot) -> Snapshot:
        return replace(view, accounts=replace(view.accounts, tickets=np.ones_like(view.accounts.tickets)))

    given = S([(0, 1)], [A(1), A(3)], [J(0), J(1)], ordering="lottery", trading=False, rounds=1)
    assert breach(given, VERSION_1, [BY_NAME["15"]]) is None
    assert breach(given, changed(see=alike), [BY_NAME["15"]]) is not None


def test_a_breach_shrinks_to_a_small_case_of_the_same_promise():
    given = S(
        [(0, 4)] * 4,
        [A(2), A(), A(3), A(parent=2)],
        [*[J(0, gpus=4)] * 4, J(1, priority=3), J(3, accepts=(0,))],
        trading=False,
        rounds=60,
    )
    found = breach(given, VERSION_1, [BY_NAME["1"]])
    assert found is not None
    small = smallest(found, VERSION_1)
    assert small.name == "1"
    assert len(small.economy.jobs) < len(given.jobs)
    assert len(small.economy.accounts) == 2
    assert small.economy.rounds < 60


def test_tallies_count_verdicts():
    tallies, breaches = judged(VERSION_1, 1, 3)
    broken = [one.name for one in breaches]
    assert [(tally.promise.name, tally.broken) for tally in tallies if tally.broken] == [
        (name, broken.count(name)) for name in BY_NAME if name in broken
    ]
    assert all(tally.judged <= 3 for tally in tallies)
    assert isinstance(random_economy(1, 0).settings, Settings)


def test_holes_that_only_one_user_fits_in_cost_others_nothing():
    """Proves that GPUs on which only one user's jobs fit do not put this user far ahead of its share.

    Gangs of 3 on three nodes of 4 leave three GPUs. A user with one-GPU jobs, who is due one GPU, gets all three.
    """
    gangs = [*[Job(0, gpus=3)] * 4, *[Job(1, gpus=3)] * 4, *[Job(2)] * 12]
    given = economy([(0, 4)] * 3, [Account(5.5), Account(5.5), Account()], gangs, trading=False, rounds=90)
    played = Played.of(given, NEWEST)
    assert played.lag[:, 2].max() <= played.fluid + 1e-6 < 10
