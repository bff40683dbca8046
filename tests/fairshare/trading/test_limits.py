"""Tests that trades never exceed the limits of teams, and that limits that are off change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.codec import decode_snapshot, encode
from fairshare.entitlement import entitlements
from fairshare.model import Accounts, Decision, Settings, Snapshot
from fairshare.tree import Tree
from tests.fairshare.build import INF, Account, Job, decide, snapshot, snapshots

EXAMPLES = settings(max_examples=150, deadline=None)
SLACK = 1e-6  # GPUs


def limited(given: Snapshot, **arrays: object) -> Snapshot:
    """Returns the snapshot with the given limits on trades; all other limits on trades are off."""
    shape = given.accounts.owed.shape
    none = {
        "deals": np.ones(shape, dtype=bool),
        "give_most": np.full(shape, INF),
        "give_part": np.full(shape, INF),
    }
    return replace(given, accounts=replace(given.accounts, **none | arrays))


def market(*speed_up_of: float, gpus: int = 8, parents: tuple[int, ...] = ()) -> Snapshot:
    """Returns teams that have far more jobs than there are GPUs, on two generations. Each argument is a team's
    speed-up.

    `parents` has the department of each team. Departments come first among the accounts.
    """
    departments = max(parents, default=-1) + 1
    accounts = [Account() for _ in range(departments)]
    accounts += [Account(trades=True, parent=parents[t] if parents else -1) for t in range(len(speed_up_of))]
    jobs = [
        Job(departments + t, rate={0: 1.0, 1: speed_up})
        for t, speed_up in enumerate(speed_up_of)
        for _ in range(2 * gpus)
    ]
    return snapshot([(0, gpus), (1, gpus)], accounts, jobs)


def array(given: Snapshot, otherwise: float, **of: tuple[int, int, float]) -> np.ndarray:
    amounts = np.full(given.accounts.owed.shape, otherwise)
    for account, generation, value in of.values():
        amounts[account, generation] = value
    return amounts


def given_of(decision: Decision) -> tuple[float, float]:
    """Returns (fast GPUs that account 0 sold to account 1, slow GPUs that account 0 got for them)."""
    assert {(t.seller, t.buyer) for t in decision.trades} == {(0, 1)}
    return sum(t.fast_gpus for t in decision.trades), sum(t.slow_gpus for t in decision.trades)


def test_a_seller_gives_no_more_than_its_limit() -> None:
    free = market(1.0, 4.0)
    assert given_of(decide(free, seed=0))[0] > 1
    held = limited(free, give_most=array(free, INF, seller=(0, 1, 0.5)))
    assert given_of(decide(held, seed=0))[0] == pytest.approx(0.5, rel=1e-6)


def test_a_buyer_gives_no_more_than_its_limit() -> None:
    free = market(1.0, 4.0)
    held = limited(free, give_most=array(free, INF, buyer=(1, 0, 1.0)))
    assert given_of(decide(held, seed=0))[1] == pytest.approx(1.0, rel=1e-6)


def test_a_fractional_limit_is_relative_to_the_entitlement() -> None:
    free = market(1.0, 4.0)  # each team has four GPUs of each generation
    held = limited(free, give_part=array(free, INF, seller=(0, 1, 0.25)))
    assert given_of(decide(held, seed=0))[0] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("account", [0, 1])
@pytest.mark.parametrize("generation", [0, 1])
def test_a_generation_that_one_side_does_not_trade_is_not_traded(account: int, generation: int) -> None:
    free = market(1.0, 4.0)
    deals = np.ones((2, 2), dtype=bool)
    deals[account, generation] = False
    assert decide(limited(free, deals=deals), seed=0).trades == ()


def test_a_team_that_does_not_trade_does_not_set_prices() -> None:
    """Proves that a team that does not trade has no influence on prices.

    By the rule of the Gandiva_fair paper, the price is the second-highest speed-up of the teams that trade.
    """
    free = replace(market(1.0, 3.0, 4.0, gpus=9), settings=Settings(pricing="second_price"))
    deals = np.ones((3, 2), dtype=bool)
    deals[1] = False
    assert max(t.price for t in decide(free, seed=0).trades) == pytest.approx(3.0)
    (trade,) = decide(limited(free, deals=deals), seed=0).trades
    assert (trade.seller, trade.buyer) == (0, 2)
    assert trade.price < 3.0


def test_a_departments_limit_ignores_trades_between_its_teams() -> None:
    free = market(1.0, 4.0, 4.0, parents=(0, 0, 1))
    within = {(2, 3), (3, 2)}
    none = limited(free, give_most=array(free, INF, department=(0, 1, 0.0)))
    trades = decide(none, seed=0).trades
    assert trades
    assert all((t.seller, t.buyer) in within for t in trades)
    some = limited(free, give_most=array(free, INF, department=(0, 1, 0.25)))
    given = sum(t.fast_gpus for t in decide(some, seed=0).trades if (t.seller, t.buyer) not in within)
    assert given == pytest.approx(0.25)


@st.composite
def with_limits(draw: st.DrawFn) -> Snapshot:
    """Draws several teams in departments. The teams want to trade, and most of them have limits."""
    teams, gpus = draw(st.integers(2, 5)), draw(st.sampled_from([4, 8, 9]))
    parents = tuple(draw(st.integers(0, 1)) for _ in range(teams)) if draw(st.booleans()) else ()
    speeds = [draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 6.0])) for _ in range(teams)]
    plain = market(*speeds, gpus=gpus, parents=parents)
    shape = plain.accounts.owed.shape

    def table(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array([[draw(values) for _ in range(shape[1])] for _ in range(shape[0])])

    return limited(
        plain,
        deals=table(st.sampled_from([1.0, 1.0, 1.0, 0.0])).astype(bool),
        give_most=table(st.sampled_from([INF, INF, 0.0, 0.3, 1.0])),
        give_part=table(st.sampled_from([INF, INF, 0.0, 0.1, 0.5])),
    )


def given_across(accounts: Accounts, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """Returns two arrays (accounts, generations) about the trades of an account's subtree with accounts outside it: the
    GPUs that the subtree gave, and whether any of these trades used the generation."""
    tree = Tree.of(accounts.parent)
    gave, touched = np.zeros(accounts.owed.shape), np.zeros(accounts.owed.shape, dtype=bool)
    for trade in decision.trades:
        sides = set(tree.path(trade.seller)), set(tree.path(trade.buyer))
        for mine, others, generation, gpus in (
            (sides[0], sides[1], trade.fast, trade.fast_gpus),
            (sides[1], sides[0], trade.slow, trade.slow_gpus),
        ):
            for account in mine - others:
                gave[account, generation] += gpus
                touched[account, [trade.slow, trade.fast]] = True
    return gave, touched


@EXAMPLES
@given(with_limits())
def test_no_trade_exceeds_any_limit(given: Snapshot) -> None:
    decision = decide(given, seed=0)
    accounts = given.accounts
    gave, touched = given_across(accounts, decision)
    assert (gave <= accounts.give_most + SLACK).all()
    limited_part = np.isfinite(accounts.give_part)
    part = np.where(limited_part, accounts.give_part, 0.0) * entitlements(given)
    assert (gave[limited_part] <= part[limited_part] + SLACK).all()
    assert not (touched & ~accounts.deals).any()


def test_the_limits_above_bind_in_some_examples() -> None:
    """Proves that an account without limits gives away more than one GPU.

    So limits of one GPU or less, as in test_no_trade_exceeds_any_limit, do restrict trades.
    """
    free = market(1.0, 2.0, 6.0)
    gave, _ = given_across(free.accounts, decide(free, seed=0))
    assert gave.max() > 1.0


@EXAMPLES
@given(snapshots(trading=True))
def test_infinite_limits_change_nothing(given: Snapshot) -> None:
    assert encode(decide(limited(given), seed=1)) == encode(decide(given, seed=1))


def test_a_round_is_recorded_with_its_limits() -> None:
    held = limited(market(1.0, 4.0), give_most=np.full((2, 2), 0.5))
    again = decode_snapshot(encode(held))
    assert encode(again) == encode(held)
    assert encode(decide(again, seed=0)) == encode(decide(held, seed=0))
    assert decode_snapshot(encode(market(1.0, 4.0))).accounts.give_most is None
