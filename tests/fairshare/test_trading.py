"""Trades: the paper's price, the price that lets both gain, and what no trade may do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.demand import demand_rank, members
from fairshare.policies.gandiva_fair_1.algorithm import decide, divide
from fairshare.policies.gandiva_fair_1.filling import water_fill
from fairshare.policies.gandiva_fair_1.speed import preferred_turns, speed_ups
from fairshare.reasons import may_run
from fairshare.trade_limits import parties_of
from fairshare.tree import Tree
from tests.fairshare.build import INF, Account, Job, snapshot, snapshots

EXAMPLES = settings(max_examples=100, deadline=None)


def market(speed_up_of, *, tickets=None, gpus=100, **settings):
    """Teams with far more jobs than GPUs, on two generations of `gpus` GPUs each."""
    accounts = [Account(weight, trades=True) for weight in tickets or [1.0] * len(speed_up_of)]
    jobs = [Job(t, rate={0: 1.0, 1: s}) for t, s in enumerate(speed_up_of) for _ in range(2 * gpus)]
    return snapshot([(0, gpus), (1, gpus)], accounts, jobs, **settings)


def test_second_prices_of_three_teams():
    """The vector of an independent implementation: shares .33 .33 .34, speed-ups 4 6 8."""
    decision = decide(market([4.0, 6.0, 8.0], tickets=[33, 33, 34], pricing="second_price"), seed=0)
    assert decision.share / 100 == pytest.approx(
        np.array([[1.0, 0.190833], [0.0, 0.4125], [0.0, 0.396667]]), abs=1e-6
    )
    assert [(t.seller, t.buyer, t.price) for t in decision.trades] == [(0, 2, 6.0), (0, 1, 4.0)]
    assert [t.fast_gpus / 100 for t in decision.trades] == pytest.approx([0.056667, 0.0825], abs=1e-6)
    before = np.array([0.33, 0.33, 0.34])[:, None].repeat(2, axis=1)
    speed = np.array([[1, 4], [1, 6], [1, 8]])
    gain = (decision.share / 100 * speed).sum(axis=1) / (before * speed).sum(axis=1)
    assert gain == pytest.approx([1.0687, 1.0714, 1.0370], abs=1e-4)


def test_second_prices_of_four_teams():
    decision = decide(market([1.22, 2.0, 4.0, 6.0], gpus=8, pricing="second_price"), seed=0)
    bought = [(t.seller, t.buyer, t.fast_gpus, t.price) for t in decision.trades]
    assert bought == [(0, 3, pytest.approx(0.5), 4.0), (0, 2, 1.0, 2.0), (0, 1, pytest.approx(0.5), 1.22)]
    assert decision.share == pytest.approx(np.array([[6.61, 0], [1.39, 2.5], [0, 3], [0, 2.5]]))
    speed = np.array([[1, 1.22], [1, 2], [1, 4], [1, 6]])
    assert (decision.share * speed).sum(axis=1) / (2 * speed).sum(axis=1) == pytest.approx(
        [1.4887, 1.0650, 1.2000, 1.0714], abs=1e-4
    )


def test_between_two_teams_the_price_is_the_geometric_mean_and_both_gain():
    decision = decide(market([1.0, 4.0], gpus=8), seed=0)
    (trade,) = decision.trades
    assert (trade.price, trade.fast_gpus, trade.slow_gpus) == (2.0, 2.0, 4.0)
    assert decision.share == pytest.approx(np.array([[8, 2], [0, 6]]))


def test_between_a_third_party_sets_the_price():
    decision = decide(market([1.0, 3.0, 4.0], gpus=9), seed=0)
    assert (decision.trades[0].seller, decision.trades[0].buyer, decision.trades[0].price) == (0, 2, 3.0)


def test_speed_ups_below_one_trade_as_well():
    # For all teams the second generation is the slower one: the trade names it so.
    decision = decide(market([0.25, 0.8], gpus=8), seed=0)
    (trade,) = decision.trades
    assert (trade.slow, trade.fast, trade.seller, trade.buyer) == (1, 0, 1, 0)
    assert trade.seller_speedup == pytest.approx(1.25)
    assert trade.seller_speedup < trade.price < trade.buyer_speedup


@pytest.mark.parametrize("speed_ups", [[2.0, 2.0], [2.0, 2.05]])
def test_what_gains_too_little_is_not_traded(speed_ups):
    assert decide(market(speed_ups), seed=0).trades == ()


def test_trading_can_be_switched_off():
    assert decide(market([1.0, 4.0], trading=False), seed=0).trades == ()


def test_only_measured_jobs_of_trading_teams_take_part():
    accounts = [Account(trades=True), Account(trades=False), Account(trades=True)]
    jobs = [Job(0, rate={0: 1.0, 1: 1.0}) for _ in range(9)]
    jobs += [Job(1, rate={0: 1.0, 1: 9.0}) for _ in range(9)]
    jobs += [Job(2, rate={1: 9.0}) for _ in range(9)]
    assert decide(snapshot([(0, 3), (1, 3)], accounts, jobs), seed=0).trades == ()


def test_a_team_trades_as_one_before_its_users_divide():
    accounts = [
        Account(trades=True),
        Account(trades=True),
        Account(3, parent=0),
        Account(1, parent=0),
        Account(parent=1),
    ]
    jobs = [Job(t, rate={0: 1.0, 1: 1.0 if t < 4 else 4.0}) for t in (2, 3, 4) for _ in range(20)]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, jobs), seed=0)
    assert [(t.seller, t.buyer) for t in decision.trades] == [(0, 1)]
    assert decision.share[0] == pytest.approx([8, 2])
    assert decision.share[2] == pytest.approx([6, 1.5])
    assert decision.share[3] == pytest.approx([2, 0.5])


def test_a_speed_up_is_the_mean_over_gangs_by_size():
    given = snapshot(
        [(0, 8), (1, 8)],
        [Account(trades=True)],
        [
            Job(0, gpus=3, rate={0: 1.0, 1: 2.0}),
            Job(0, gpus=1, rate={0: 1.0, 1: 6.0}),
            Job(0, rate={1: 9.0}),
            Job(0, accepts=(1,), rate={0: 1.0, 1: 9.0}),
            Job(0, rate={0: 0.0, 1: 9.0}),
        ],
    )
    party = np.zeros(5, dtype=np.int64)
    assert speed_ups(given.jobs, given.jobs.accepts, party, 1, (0, 1)) == pytest.approx([3.0])


def test_nobody_buys_more_than_its_jobs_can_use():
    accounts = [Account(trades=True), Account(trades=True)]
    jobs = [Job(0, rate={0: 1.0, 1: 1.0}) for _ in range(20)]
    # One gang of 4 GPUs that gains, and others that accept the slow generation only.
    jobs += [Job(1, gpus=5, rate={0: 1.0, 1: 4.0}), *(Job(1, accepts=(0,)) for _ in range(20))]
    decision = decide(snapshot([(0, 8), (1, 8)], accounts, jobs), seed=0)
    assert decision.share[1] == pytest.approx([2, 5])
    assert decision.share[0] == pytest.approx([6, 3])


@EXAMPLES
@given(snapshots(trading=True))
def test_trades_conserve_generations_and_leave_both_sides_better_off(given):
    decision = decide(given, seed=0)
    tree = Tree.of(given.accounts.parent)
    able, _ = may_run(given, tree)
    able = given.jobs.sharing(able)
    rank = demand_rank(tree, given.accounts, given.jobs, able)
    turn = preferred_turns(tree, given.jobs, able)
    capacity = np.bincount(given.cluster.node_generation, given.cluster.capacity)
    before = water_fill(tree, given.accounts, rank, turn, capacity).held
    assert decision.share[tree.roots].sum(axis=0) == pytest.approx(before[tree.roots].sum(axis=0), abs=1e-6)
    parties, member = parties_of(tree, given.accounts.trades)
    after = before.copy()
    for trade in decision.trades:
        assert trade.seller != trade.buyer
        assert trade.fast_gpus > 0
        assert trade.price == pytest.approx(trade.slow_gpus / trade.fast_gpus)
        assert trade.seller_speedup < trade.price < trade.buyer_speedup
        for side, speed_up in ((trade.seller, trade.seller_speedup), (trade.buyer, trade.buyer_speedup)):
            pair = (trade.slow, trade.fast)
            own = speed_ups(given.jobs, able, member[given.jobs.account], len(parties), pair)
            assert own[parties.tolist().index(side)] == pytest.approx(speed_up)
        after[trade.seller, [trade.fast, trade.slow]] += [-trade.fast_gpus, trade.slow_gpus]
        after[trade.buyer, [trade.fast, trade.slow]] += [trade.fast_gpus, -trade.slow_gpus]
    assert (after[parties] > -1e-6).all()
    assert decision.share[parties] == pytest.approx(after[parties], abs=1e-6)


def test_what_a_team_bought_finds_room_below_it_whatever_its_users_like_best():
    """One user can use either generation and takes half of each; the other, slow GPUs alone."""
    accounts = [
        Account(trades=True),
        Account(trades=True),
        Account(parent=0),
        Account(parent=0),
        Account(parent=1),
    ]
    jobs = [Job(2, rate={0: 1.0, 1: 1.0}) for _ in range(4)] + [Job(3, accepts=(0,)) for _ in range(4)]
    jobs += [Job(4, rate={0: 1.0, 1: 4.0}) for _ in range(20)]
    division = divide(snapshot([(0, 8), (1, 8)], accounts, jobs))
    assert [(t.seller, t.buyer) for t in division.trades] == [(0, 1)]
    assert division.share[[2, 3]].sum(axis=0) == pytest.approx(division.share[0])


@st.composite
def deep_trees(draw: st.DrawFn):
    """Two or three teams that trade, with one or two levels below them, whose jobs are choosy."""
    kinds = draw(st.integers(2, 4))
    nodes = [(k, draw(st.sampled_from([2, 4, 8]))) for k in range(kinds)]
    cap = st.sampled_from([INF, INF, INF, 1.0, 3.0, 6.0])

    def account(**of: object) -> Account:
        caps = {k: draw(cap) for k in range(kinds)}
        return Account(draw(st.sampled_from([1.0, 2.0, 3.5])), cap=caps, cap_total=draw(cap), **of)

    accounts = [account(trades=True) for _ in range(draw(st.integers(2, 3)))]
    lowest = list(range(len(accounts)))
    for _ in range(draw(st.integers(1, 2))):
        above, lowest = lowest, []
        for parent in above:
            for _ in range(draw(st.integers(1, 3))):
                lowest.append(len(accounts))
                accounts.append(account(parent=parent))
    jobs = []
    for _ in range(draw(st.integers(4, 20))):
        accepts = tuple(sorted(draw(st.sets(st.integers(0, kinds - 1), min_size=1))))
        rate = {k: draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0])) for k in accepts}
        gpus = draw(st.sampled_from([1, 2, 4]))
        jobs.append(Job(draw(st.sampled_from(lowest)), gpus=gpus, accepts=accepts, rate=rate))
    return snapshot(nodes, accounts, jobs, trading=True)


@settings(max_examples=300, deadline=None)
@given(deep_trees())
def test_accounts_below_a_team_can_use_all_that_it_holds_after_its_trades(given):
    division = divide(given)
    tree = division.tree
    able = given.jobs.sharing(division.able)
    rank = demand_rank(tree, given.accounts, given.jobs, able)
    for account, children in enumerate(tree.children):
        if len(children):
            assert division.share[children].sum(axis=0) == pytest.approx(division.share[account], abs=1e-6)
        assert (members(len(division.share[account])) @ division.share[account] <= rank[account] + 1e-6).all()
