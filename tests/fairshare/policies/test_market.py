"""Tests that the market policy finds equilibria of random economies, which linear programs confirm, and uses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fairshare.check.economy import Account as Owner
from fairshare.check.economy import Economy as Case
from fairshare.check.economy import Job as Gang
from fairshare.check.economy import economy as case
from fairshare.check.generate import random_economy
from fairshare.check.judge import breach
from fairshare.check.policies import POLICIES, promised
from fairshare.check.promises import PROMISES
from fairshare.driver import Situation
from fairshare.model import Floats
from fairshare.policies import policy_named
from fairshare.policies.market import shares
from fairshare.policies.market.economy import Economy, Equilibrium, missed
from fairshare.policies.market.equilibrium import equilibrium
from fairshare.policies.market.shares import market_shares
from fairshare.reasons import may_run
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, snapshot

NEARLY = 1e-4  # fraction of an account's progress
NOTHING = 1e-6


def best(economy: Economy, account: int, *, limits: list[tuple[Floats, float]]) -> float:
    """Returns the most progress that an account could make within linear limits on its GPUs.

    A limit is a pair: weights (K,) of its GPUs of each generation, and the upper bound of the weighted sum.
    """
    own = economy.account == account
    speed, gpus = economy.speed[own], economy.gpus[own]
    classes, kinds = speed.shape
    rows = [np.repeat(np.eye(classes)[c], kinds) for c in range(classes)]
    rows += [np.tile(weight, classes) for weight, _ in limits]
    each = np.broadcast_to(np.inf if economy.most is None else economy.most[own], speed.shape)
    bounds = [(0, bound if one > 0 else 0) for one, bound in zip(speed.ravel(), each.ravel(), strict=True)]
    most = [*gpus, *(bound for _, bound in limits)]
    found = linprog(-speed.ravel(), np.array(rows), most, bounds=bounds, method="highs")
    assert found.status == 0
    return float(-found.fun)


def bundle(economy: Economy, account: int, amount: Floats) -> float:
    return best(economy, account, limits=list(zip(np.eye(len(amount)), amount, strict=True)))


def economy(seed: int) -> Economy:
    """Returns random accounts, each with a few classes of jobs that differ in speed, size and accepted generations."""
    chance = np.random.default_rng(seed)
    kinds, accounts = int(chance.integers(1, 4)), int(chance.integers(2, 7))
    speeds, owner = [], []
    for account in range(accounts):
        for _ in range(int(chance.integers(1, 4))):
            own = np.exp(np.arange(kinds) * chance.uniform(0, 1.5) + 0.3 * chance.normal(size=kinds))
            speed = own if chance.random() < 0.6 else np.ones(kinds)
            may = chance.random(kinds) < 0.75
            may[chance.integers(kinds)] = True
            speeds.append(np.where(may, speed, 0.0) / speed[may].max())
            owner.append(account)
    return Economy(
        speed=np.array(speeds),
        gpus=chance.choice([1.0, 2.0, 4.0, 8.0, 16.0], len(owner)),
        account=np.array(owner),
        income=chance.choice([1.0, 2.0, 4.0], accounts),
        capacity=chance.choice([1.0, 2.0, 4.0, 8.0, 16.0], kinds),
    )


def progress(one: Economy, found: Equilibrium) -> Floats:
    return one.of_accounts((found.use * one.speed).sum(axis=1))


def wide_economy(seed: int, generations: int) -> Economy:
    """Returns an economy with extreme differences, in which some classes cannot use all GPUs of a generation.

    Incomes differ by a factor of up to a million, speeds by a hundred, and sizes by a thousand.
    """
    chance = np.random.default_rng(seed)
    accounts = int(chance.integers(2, 12))
    owner = np.repeat(np.arange(accounts), chance.integers(1, 4, accounts))
    speed = np.exp(chance.uniform(np.log(0.01), 0.0, (len(owner), generations)))
    if chance.random() < 0.3:  # equally fast on several generations
        speed = np.ceil(4 * speed) / 4
    speed *= chance.random(speed.shape) < 0.8
    speed[np.arange(len(owner)), chance.integers(generations, size=len(owner))] = 1.0
    income = np.exp(chance.uniform(0.0, np.log(1e6), accounts) * (chance.random() < 0.6))
    capacity = np.exp(chance.uniform(0.0, np.log(1000.0), generations))
    limited = chance.random(speed.shape) < 0.3 * (chance.random() < 0.5)
    return Economy(
        speed=speed / speed.max(axis=1, keepdims=True),
        gpus=np.exp(chance.uniform(0.0, np.log(1000.0), len(owner))),
        account=owner,
        income=income / income.sum() * capacity.sum(),
        capacity=capacity,
        most=capacity * np.where(limited, chance.uniform(0.3, 1.0, speed.shape), 1.0),
    )


def assert_equilibrium(one: Economy, found: Equilibrium) -> None:
    """Asserts by linear programs that an equilibrium is correct. The check does not depend on how the equilibrium was
    found."""
    has, bought, part = progress(one, found), one.of_accounts(found.use), one.income / one.income.sum()
    assert (found.use >= 0).all()
    assert (found.use.sum(axis=1) <= one.gpus * (1 + NOTHING)).all()
    assert (bought.sum(axis=0) <= one.capacity * (1 + NOTHING)).all()
    assert one.most is None or (found.use <= one.most * (1 + NOTHING)).all()
    # Nothing is wasted: a generation with a price is sold, and one without is left only if no account can use more.
    unsold = one.capacity - bought.sum(axis=0)
    assert (unsold * found.price <= NOTHING * one.income.sum()).all()
    # No account pays more than its income, and none could have bought anything better.
    assert (bought @ found.price <= one.income * (1 + NOTHING)).all()
    for account in range(len(one.income)):
        could = best(one, account, limits=[(found.price, one.income[account])])
        assert has[account] >= could * (1 - NEARLY)
        private = bundle(one, account, one.capacity * part[account])
        assert has[account] >= private * (1 - NEARLY)
        # no account prefers what another account has, in proportion to tickets
        for other in range(len(one.income)):
            theirs = bundle(one, account, bought[other] * one.income[account] / one.income[other])
            assert has[account] >= theirs * (1 - NEARLY) - NOTHING


@pytest.mark.parametrize("block", range(4))
def test_random_economies_are_in_equilibrium(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        one = economy(seed)
        assert_equilibrium(one, equilibrium(one))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), generations=st.integers(2, 16))
def test_economies_of_very_unequal_accounts_are_in_equilibrium(seed: int, generations: int) -> None:
    one = wide_economy(seed, generations)
    assert_equilibrium(one, equilibrium(one))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), generations=st.integers(2, 16))
def test_an_equilibrium_is_certified(seed: int, generations: int) -> None:
    one = wide_economy(seed, generations)
    assert missed(one, equilibrium(one)) < NEARLY


def test_wrong_prices_or_purchases_are_not_certified() -> None:
    """Proves that the check rejects wrong results, each with one kind of error. Two accounts want the fast
    generation."""
    one = Economy(
        np.array([[0.5, 1.0], [0.5, 1.0]]), np.full(2, 8.0), np.arange(2), np.full(2, 4.0), np.full(2, 4.0)
    )
    right = Equilibrium(np.array([2 / 3, 4 / 3]), np.full((2, 2), 2.0), np.full(2, 0.75))
    assert missed(one, right) == pytest.approx(0.0, abs=1e-9)
    wrong = {
        "sold twice": replace(right, use=np.array([[2.0, 2.0], [2.0, 2.5]])),
        "unsold": replace(right, use=np.array([[2.0, 2.0], [1.5, 2.0]])),
        "not paid for": replace(right, price=np.array([0.7, 1.4])),
        "not worth its price": replace(
            right, use=np.array([[0.0, 3.0], [4.0, 1.0]]), price=np.array([0.8, 1.2])
        ),
        "more than a class can use": replace(right, use=np.array([[4.0, 0.0], [0.0, 4.0]])),
    }
    assert all(missed(replace(one, gpus=np.full(2, 3.9)), of) > 0.02 for of in wrong.values())


def test_shares_are_max_min_if_no_prices_are_found_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_found(one: Economy) -> Equilibrium:
        return Equilibrium(np.zeros(2), np.zeros(one.speed.shape), np.zeros(len(one.income)))

    jobs = [Job(0, rate={0: 1.0, 1: 3.0}), Job(1, rate={0: 1.0, 1: 1.0})] * 8
    view = snapshot([(0, 8), (1, 4)], [Account(), Account(3)], jobs, trading=False)
    plan, by_tickets = (
        Situation.first(policy_named(name), view).decide(1) for name in ("market", "gandiva_fair")
    )
    assert plan.remark is None
    assert plan.share != pytest.approx(by_tickets.share)
    monkeypatch.setattr(shares, "equilibrium", nothing_found)
    plan = Situation.first(policy_named("market"), view).decide(1)
    assert plan.share == pytest.approx(by_tickets.share)
    assert "100.00%" in str(plan.remark)


@pytest.mark.parametrize("number", range(10))
def test_a_random_economy_breaks_no_promise_of_the_market(number: int) -> None:
    judged = POLICIES["market:1"]
    found = breach(random_economy(2, number), judged, promised(judged), seed=number)
    assert found is None, str(found)


def test_an_account_that_bought_beyond_its_private_cluster_preempts_none_for_it() -> None:
    """Proves that an account preempts no other account's gang for GPUs that it bought beyond its guarantee.

    The second account bought the 14 GPUs that its gang needs, but only 6 of these are guaranteed. The nodes cannot hold
    the gangs of all four accounts at the same time.
    """
    gangs = [
        Gang(0, workers=3, gpus=2),
        Gang(1, workers=2, gpus=7),
        Gang(2, workers=5),
        Gang(3, gpus=6),
    ]
    given = case([(0, 4), *[(1, 8)] * 3, (2, 8), (3, 3)], [Owner()] * 4, gangs, trading=False, rounds=12)
    (promise,) = [one for one in PROMISES if one.name == "1"]
    assert breach(given, POLICIES["market:1"], [promise]) is None


@pytest.mark.parametrize(
    "given",
    [
        case([(0, 4), (1, 4), (2, 8)], [Owner()], [Gang(0, workers=3)] * 4, trading=False, rounds=2),
        case(
            [(0, 8), (0, 8), (1, 8), (1, 8), (2, 8)],
            [Owner()] * 2,
            [*[Gang(0, gpus=3)] * 3, *[Gang(1, workers=2, gpus=8)] * 2],
            trading=False,
            rounds=1,
        ),
    ],
)
def test_no_account_buys_more_of_a_generation_than_its_gangs_can_use(given: Case) -> None:
    (promise,) = [one for one in PROMISES if one.name == "12"]
    assert breach(given, POLICIES["market:1"], [promise]) is None


def test_the_judge_sees_that_max_min_shares_are_no_market() -> None:
    """Proves that the judge, which checks promises, does not accept max-min shares as a market equilibrium.

    With max-min shares, a job stays on its guaranteed fast GPUs, and so blocks another job of the same account.
    """
    few = [Gang(0, gpus=2, rate={0: 1.0, 1: 1.258}), Gang(0, gpus=3, rate={0: 1.0, 1: 0.919})]
    given = case(
        [(0, 4), (1, 8)],
        [Owner(), Owner(tickets=100)],
        [*few, Gang(1, accepts=(0,))],
        trading=False,
        rounds=2,
    )
    (promise,) = [one for one in PROMISES if one.name == "12"]
    assert breach(given, POLICIES["gandiva_fair:2"], [promise]) is not None
    assert breach(given, POLICIES["market:1"], [promise]) is None


def test_two_teams_with_one_speed_each_pay_the_speed_up_of_the_one_that_has_both() -> None:
    """Proves the equilibrium of two teams with different speed-ups.

    Fast GPUs go to the team that is four times as fast on them. Their price is what they are worth to the other team.
    """
    one = Economy(
        np.array([[1.0, 1.0], [0.25, 1.0]]), np.full(2, 99.0), np.arange(2), np.ones(2), np.full(2, 8.0)
    )
    found = equilibrium(one)
    assert found.price[1] / found.price[0] == pytest.approx(1.0, abs=0.01)
    assert found.use == pytest.approx(np.array([[8.0, 0.0], [0.0, 8.0]]), abs=0.05)


def test_prices_are_zero_if_all_demand_fits() -> None:
    one = Economy(np.ones((2, 2)), np.array([2.0, 3.0]), np.arange(2), np.ones(2), np.full(2, 8.0))
    found = equilibrium(one)
    assert found.price == pytest.approx([0.0, 0.0], abs=1e-6)
    assert found.use.sum(axis=1) == pytest.approx([2.0, 3.0], abs=1e-3)


def test_incomes_are_tickets_level_by_level() -> None:
    accounts = [Account(1), Account(3), Account(1, parent=0), Account(1, parent=0), Account(parent=1)]
    jobs = [Job(t) for t in (2, 3, 4) for _ in range(20)]
    one = snapshot([(0, 8)], accounts, jobs)
    tree = Tree.of(one.accounts.parent)
    found = market_shares(one, tree, may_run(one, tree)[0])
    assert found.income == pytest.approx([2, 6, 1, 1, 6])
    assert found.share[:, 0] == pytest.approx([2, 6, 1, 1, 6], abs=1e-3)


def test_an_account_that_can_use_one_generation_gets_it_from_one_that_can_use_both() -> None:
    one = snapshot([(0, 1), (1, 1)], [Account(), Account()], [Job(0), Job(1, accepts=(1,))])
    tree = Tree.of(one.accounts.parent)
    share = market_shares(one, tree, may_run(one, tree)[0]).share
    assert share == pytest.approx(np.eye(2), abs=1e-2)


def test_limits_bound_what_is_wanted_and_what_is_given() -> None:
    accounts = [Account(cap_total=2.0), Account(cap={0: 3.0}), Account()]
    one = snapshot([(0, 12)], accounts, [Job(t) for t in range(3) for _ in range(12)])
    tree = Tree.of(one.accounts.parent)
    share = market_shares(one, tree, may_run(one, tree)[0]).share[:, 0]
    assert share[0] == pytest.approx(2.0, abs=1e-2)
    assert share[1] == pytest.approx(3.0, abs=1e-2)
    assert share[2] >= 5.0 - 1e-3


def test_without_jobs_no_account_has_a_share() -> None:
    one = snapshot([(0, 8)], [Account()], [])
    assert not market_shares(one, Tree.of(one.accounts.parent), one.jobs.accepts).share.any()
